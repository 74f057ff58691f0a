"""The ring of a job, and the rights of its workers. Pure."""

from __future__ import annotations

from master.state.membership import Member, Membership
from master.state.ring.ring import Ring
from master.state.work.task_scheduler import TaskScheduler


class RingCoordinator:
    """Determines which workers have the model, and how many a ring needs.

    Args:
        tasks: tasks that workers of the ring lease besides training: evaluations and snapshots.
        min_workers: minimum size of the first ring.
    """

    def __init__(self, members: Membership, tasks: TaskScheduler, *, min_workers: int) -> None:
        self.ring = Ring()
        self._members = members
        self._tasks = tasks
        self._min_workers = min_workers

    def due(self, now: float, *, workers_wanted: int) -> bool:
        """Return whether the next ring can be formed."""
        least = min(self._min_workers, workers_wanted)
        return self.ring.due(now, min_workers=least, max_workers=workers_wanted)

    def has(self, worker: int) -> bool:
        """Return whether a living worker was a member of the newest ring when it was formed."""
        current = self.ring.current
        return current is not None and worker in current.workers and worker in self._members

    def leads(self, worker: int) -> bool:
        """Return whether a living worker is rank 0 of the newest ring, which writes checkpoints."""
        current = self.ring.current
        return current is not None and current.workers[0] == worker and worker in self._members

    def may_lease(self, member: Member) -> bool:
        """Return whether a worker has a model to evaluate."""
        return not self._tasks.lockstep or self.has(member.id)

    def may_snapshot(self, member: Member) -> bool:
        """Return whether the model of a worker has all steps that the snapshot must contain."""
        main = self._tasks.main
        if not self._tasks.lockstep or main is None or not self._tasks.trained:
            return True
        # The last step may have completed on some members only.
        at_end = member.heartbeat.position >= main.records_done
        return at_end and member.heartbeat.ring == self.ring.number

    def may_drain(self, worker: int) -> bool:
        """Return whether the worker can leave without loss of the model."""
        if self.ring.keeps_model(worker):
            return False
        living = self.ring.living()
        others = [self._members.get(other) for other in living - {worker}]
        return worker not in living or any(m is not None and not m.draining for m in others)
