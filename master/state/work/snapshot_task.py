"""The one-off task of writing a snapshot, by one worker that has the whole model. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from master.state.work.tasks import TaskQueue
from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.data.task_space import one_off
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps


@dataclass(frozen=True)
class SnapshotWritten:
    """A worker wrote its model."""

    directory: str
    snapshot: Snapshot


@dataclass(frozen=True)
class SnapshotFailed:
    """A worker could not write its model."""

    error: str


class SnapshotTask:
    """At most one at a time.

    Args:
        new_queue: makes a queue, see :class:`~master.state.work.tasks.TaskQueue`.
    """

    def __init__(self, new_queue: Callable[..., TaskQueue]) -> None:
        self._new_queue = new_queue
        self.queue: TaskQueue | None = None
        """Of the task; None: no snapshot is due."""
        self._base = Watermarks()

    @property
    def is_left(self) -> bool:
        """There is a snapshot to be written that nobody writes."""
        return self.queue is not None and not self.queue.doing

    def ask(self, directory: str) -> None:
        """The model is to be written there."""
        self.queue = self._new_queue(
            one_off("snapshot"), kind=pb.TASK_SNAPSHOT, directory=directory
        )

    def drop(self) -> None:
        """The model is not to be written any more."""
        self.queue = None

    def begun(self, progress: Watermarks) -> None:
        """A worker has the task: what is done now is in its model when it writes the model."""
        self._base = progress

    def written(self, snapshot: ps.Snapshot) -> SnapshotWritten:
        """The task is done; the watermarks are those of the worker and what was done before."""
        assert self.queue is not None
        directory, self.queue = self.queue.directory, None
        written = Snapshot.from_proto(snapshot)
        progress = Watermarks.union([self._base, written.watermarks])
        return SnapshotWritten(directory, replace(written, watermarks=progress))

    def to_state(self) -> list[Any] | None:
        """What a restarted master needs, as JSON can say it."""
        if self.queue is None:
            return None
        tasks, base = self.queue.to_state(), MessageToDict(self._base.to_proto())
        return [self.queue.directory, tasks, base]

    def from_state(self, state: list[Any] | None, now: float) -> None:
        """The inverse of :meth:`to_state`."""
        if state is None:
            return
        directory, tasks, base = state
        self.ask(directory)
        assert self.queue is not None
        self.queue.from_state(tasks, now)
        self._base = Watermarks.from_proto(ParseDict(base, ps.Watermarks()))
