"""The task of writing a snapshot, for one worker that has the whole model. Pure."""

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
    """A queue with one snapshot task, or none."""

    def __init__(self, new_queue: Callable[..., TaskQueue]) -> None:
        self._new_queue = new_queue
        self.queue: TaskQueue | None = None
        """Queue with the task; None if no snapshot is due."""
        self._base = Watermarks()

    @property
    def is_left(self) -> bool:
        """True if a snapshot is due and no worker is writing it."""
        return self.queue is not None and not self.queue.doing

    def ask(self, directory: str) -> None:
        """Request a snapshot of the model in ``directory``."""
        self.queue = self._new_queue(
            one_off("snapshot"), kind=pb.TASK_SNAPSHOT, directory=directory
        )

    def drop(self) -> None:
        """Cancel the snapshot."""
        self.queue = None

    def begun(self, progress: Watermarks) -> None:
        """Record that a worker has the task: all current progress will be in its snapshot."""
        self._base = progress

    def written(self, snapshot: ps.Snapshot) -> SnapshotWritten:
        """Complete the task. The watermarks unite the worker's with those of :meth:`begun`."""
        assert self.queue is not None
        directory, self.queue = self.queue.directory, None
        written = Snapshot.from_proto(snapshot)
        progress = Watermarks.union([self._base, written.watermarks])
        return SnapshotWritten(directory, replace(written, watermarks=progress))

    def to_state(self) -> list[Any] | None:
        if self.queue is None:
            return None
        tasks, base = self.queue.to_state(), MessageToDict(self._base.to_proto())
        return [self.queue.directory, tasks, base]

    def from_state(self, state: list[Any] | None, now: float) -> None:
        if state is None:
            return
        directory, tasks, base = state
        self.ask(directory)
        assert self.queue is not None
        self.queue.from_state(tasks, now)
        self._base = Watermarks.from_proto(ParseDict(base, ps.Watermarks()))
