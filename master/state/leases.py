"""Tasks in the hands of workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_edl.data.task_space import Task


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
