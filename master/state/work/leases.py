"""Tasks in the hands of workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_edl.data.task_space import Task
from torch_edl.wire import master_pb2 as pb

_REMEMBERED = 10_000


@dataclass(frozen=True)
class Lease:
    """A task in somebody's hands."""

    id: int
    task: Task
    worker: int
    offset: int
    """Records of the task known to be committed."""
    retried: bool
    """Somebody had it before."""

    @property
    def open_records(self) -> int:
        """Records that were not committed when the task was leased."""
        return self.task.records - self.offset


@dataclass
class Hand:
    """What one worker has. It knows its sums: a master with ten thousand workers, each with tasks
    for ten seconds, is asked for the progress of all of them ten times a second."""

    deadline: float
    """When its leases expire."""
    leases: dict[int, Lease] = field(default_factory=dict)
    records: int = 0
    """Open in all leases when they were granted."""
    steps: int = 0
    """The minibatches of these records."""

    def take(self, lease: Lease, steps: int) -> None:
        """The worker gets a task with so many open minibatches."""
        self.leases[lease.id] = lease
        self.records, self.steps = self.records + lease.open_records, self.steps + steps

    def drop(self, lease: Lease, steps: int) -> None:
        """The inverse of :meth:`take`."""
        del self.leases[lease.id]
        self.records, self.steps = self.records - lease.open_records, self.steps - steps


class FirstRecords:
    """The first records that workers met in tasks, for the next attempt on the same task.

    Those of tasks that are done are kept as well, the newest of them: a task may be repeated from
    the middle when the model goes back to a checkpoint.
    """

    def __init__(self) -> None:
        self._first: dict[int, pb.FirstRecords] = {}

    def begun(self, task: int, first: pb.FirstRecords) -> None:
        """A worker is about to train a task."""
        self._first.pop(task, None)
        self._first[task] = first
        if len(self._first) > _REMEMBERED:
            del self._first[next(iter(self._first))]

    def of(self, task: int) -> pb.FirstRecords | None:
        """Those of the newest attempt on a task; None: not known."""
        return self._first.get(task)

    def to_state(self, tasks: Iterable[int]) -> list[list[Any]]:
        """Those of some tasks, as JSON can say it."""
        known = [(task, self._first[task]) for task in tasks if task in self._first]
        return [[task, first.framework, first.order, first.records] for task, first in known]

    def from_state(self, state: Iterable[Sequence[Any]]) -> None:
        """The inverse of :meth:`to_state`."""
        for task, framework, order, records in state:
            self.begun(task, pb.FirstRecords(framework=framework, order=order, records=records))
