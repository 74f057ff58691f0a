"""Tasks of streams: cut as records arrive, stored, then leased. Pure."""

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
    """The brokers reported the offsets of their partitions."""

    offsets: Mapping[str, tuple[int, int]]
    """For each partition, its first offset and one above its last."""


StreamEvent = StreamGrown | PlanKept


class Streams:
    """Cuts tasks from streams; without effect in jobs whose data have an end."""

    def __init__(self, tasks: TaskScheduler, checkpoints: CheckpointManager) -> None:
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._told = (0, 0)  # life and end of the plan last sent to the store

    def apply(self, event: StreamEvent) -> list[Note | Failure]:
        """Handle an event of a stream; ignored before the tasks are made."""
        main = self._tasks.main
        if main is None or not isinstance(main.space, StreamSpace):
            return []
        if isinstance(event, PlanKept):
            main.space.kept(event.life, event.end)
            return []
        if not self._checkpoints.running:  # a running one may need them
            main.space.forget(main.retired_before)
        try:
            said = main.space.grow(event.offsets, done=main.retired_before, idle=not main.todo)
        except DataError as error:
            return [Failure(str(error), usage=True)]
        return [Note("warning", text) for text in said]

    def take_actions(self) -> list[KeepPlan]:
        """Return the action that stores new tasks; empty if all are stored or being stored."""
        space = self._tasks.main.space if self._tasks.main is not None else None
        if not isinstance(space, StreamSpace):
            return []
        plan = (space.life, space.plan.end)
        if plan == self._told or space.plan.end == space.total:
            return []
        self._told = plan
        return [KeepPlan(*plan)]
