"""Leases: tasks that workers hold, their first records and their failures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from master.state.actions import Failure
from torch_edl.data.task_space import Task
from torch_edl.events import TaskFailed
from torch_edl.wire import master_pb2 as pb

# Number of tasks whose first records are remembered.
_REMEMBERED = 10_000
# Upper bound on the failure causes that are remembered, to log each cause once.
_MOST_CAUSES = 100
# Time for which a worker counts as idle: it asks again every two seconds.
_IDLE_S = 4.0


@dataclass(frozen=True)
class Lease:
    """A task that a worker holds."""

    id: int
    task: Task
    worker: int
    offset: int
    """Number of records of the task that were committed when it was leased."""
    retried: bool
    """True if the task was leased before."""
    since: float = 0.0
    """Time of the lease, or of the restart of the master."""

    @property
    def open_records(self) -> int:
        """Number of records that were not committed when the task was leased."""
        return self.task.records - self.offset


@dataclass
class Hand:
    """The leases of one worker, with running sums: a master with ten thousand workers computes the
    progress of all of them ten times a second."""

    deadline: float
    """Time at which the worker's leases expire."""
    leases: dict[int, Lease] = field(default_factory=dict)
    """Leases by id, oldest first."""
    records: int = 0
    """Records of all leases that were open when they were granted."""
    steps: int = 0
    """Minibatches of these records."""

    def add(self, lease: Lease, steps: int) -> None:
        """Add a lease with ``steps`` open minibatches."""
        self.leases[lease.id] = lease
        self.records, self.steps = self.records + lease.open_records, self.steps + steps

    def drop(self, lease: Lease, steps: int) -> None:
        """Remove a lease with ``steps`` open minibatches."""
        del self.leases[lease.id]
        self.records, self.steps = self.records - lease.open_records, self.steps - steps


class FirstRecords:
    """The first records that workers read in tasks, compared with those of the next attempt. Those
    of the newest done tasks are kept too: a rollback may repeat a task from its middle."""

    def __init__(self) -> None:
        self._first: dict[int, pb.FirstRecords] = {}

    def put(self, task: int, first: pb.FirstRecords) -> None:
        """Record the first records of an attempt on a task."""
        self._first.pop(task, None)
        self._first[task] = first
        if len(self._first) > _REMEMBERED:
            del self._first[next(iter(self._first))]

    def of(self, task: int) -> pb.FirstRecords | None:
        """Return the first records of the newest attempt on a task; None if unknown."""
        return self._first.get(task)

    def to_state(self, tasks: Iterable[int]) -> list[list[Any]]:
        """Return the first records of the given tasks, as JSON values."""
        known = [(task, self._first[task]) for task in tasks if task in self._first]
        return [[task, first.framework, first.order, first.records] for task, first in known]

    def from_state(self, state: Iterable[Sequence[Any]]) -> None:
        for task, framework, order, records in state:
            self.put(task, pb.FirstRecords(framework=framework, order=order, records=records))


class IdleWorker:
    """The worker that found nothing to lease last. Leases that other workers hold ahead of their
    work are then called back."""

    def __init__(self) -> None:
        self._worker, self._until = -1, 0.0

    def waits(self, worker: int, now: float) -> None:
        """Record that a worker found nothing to lease. It asks again within two seconds."""
        self._worker, self._until = worker, now + _IDLE_S

    def works(self, worker: int) -> None:
        """Record that a worker got a lease."""
        if worker == self._worker:
            self._until = 0.0

    def is_other(self, worker: int, now: float) -> bool:
        """Return whether another worker than this one waits."""
        return now < self._until and worker != self._worker


class TaskFailures:
    """Failures of the user's code in tasks. Each cause is logged once, and a task may fail
    ``limit`` times."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._causes: set[str] = set()

    def judge(self, request: pb.FailTaskRequest, count: int) -> TaskFailed | Failure | None:
        """Return the event that follows a task's failure number ``count``; None if the same cause
        was logged before."""
        if request.fatal or request.untried or count >= self._limit:
            tries = f"; the task was tried {count} times" if count > 1 else ""
            return Failure(request.error + tries, request.traceback, usage=request.untried)
        cause = request.error.partition(" (record")[0]
        if cause in self._causes:
            return None
        self._causes = {*self._causes, cause} if len(self._causes) < _MOST_CAUSES else {cause}
        return TaskFailed(
            process=f"worker-{request.worker_id}",
            error=request.error,
            failure=count,
            limit=self._limit,
            traceback=request.traceback,
        )
