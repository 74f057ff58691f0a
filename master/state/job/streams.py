"""The tasks of streams, as records arrive: cut, kept in the store, then leased. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from master.state.actions import Failure, KeepPlan, Note, PlanKept
from master.state.job.checkpoint_manager import CheckpointManager
from master.state.work.task_scheduler import TaskScheduler
from torch_edl.data.stream_space import StreamSpace
from torch_edl.errors import DataError


@dataclass(frozen=True)
class StreamGrown:
    """The brokers were asked what there is."""

    offsets: Mapping[str, tuple[int, int]]
    """Of each partition, the first offset and one after the last."""


StreamEvent = StreamGrown | PlanKept


class Streams:
    """Cuts the tasks of a job whose data are streams; nothing happens in other jobs."""

    def __init__(self, tasks: TaskScheduler, checkpoints: CheckpointManager) -> None:
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._told = (0, 0)  # life and end of the plan that is kept, or is to be

    def apply(self, event: StreamEvent) -> list[Note | Failure]:
        """Takes an event of a stream; before the tasks are made there is none to cut."""
        main = self._tasks.main
        if main is None or not isinstance(main.space, StreamSpace):
            return []
        if isinstance(event, PlanKept):
            main.space.kept(event.life, event.end)
            return []
        if not self._checkpoints.running:  # which may hold tasks that are done since it began
            main.space.forget(main.retired_before)
        try:
            said = main.space.grow(event.offsets, done=main.retired_before, idle=not main.todo)
        except DataError as error:
            return [Failure(str(error), usage=True)]
        return [Note("warning", text) for text in said]

    def take_actions(self) -> list[KeepPlan]:
        """What is to be done since the last call."""
        space = self._tasks.main.space if self._tasks.main is not None else None
        if not isinstance(space, StreamSpace):
            return []
        plan = (space.life, space.plan.end)
        if plan == self._told or space.plan.end == space.total:
            return []
        self._told = plan
        return [KeepPlan(*plan)]
