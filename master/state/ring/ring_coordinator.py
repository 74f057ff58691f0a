"""The ring of a job, and which of its workers may do what: the strategy ``allreduce``. Pure."""

from __future__ import annotations

from master.state.membership import Member, Membership
from master.state.ring.ring import Ring
from master.state.work.task_scheduler import TaskScheduler


class RingCoordinator:
    """Knows which workers have the model, and how many a ring needs.

    Args:
        tasks: what workers of the ring lease beside it: evaluations and snapshots.
        min_workers: a first ring is not formed of fewer.
    """

    def __init__(self, members: Membership, tasks: TaskScheduler, *, min_workers: int) -> None:
        self.ring = Ring()
        self._members = members
        self._tasks = tasks
        self._min_workers = min_workers

    def due(self, now: float, *, workers_wanted: int) -> bool:
        """Whether the next ring can be formed."""
        least = min(self._min_workers, workers_wanted)
        return self.ring.due(now, min_workers=least, max_workers=workers_wanted)

    def has(self, worker: int) -> bool:
        """Whether a living worker was taken into the newest ring, though it may have left it."""
        current = self.ring.current
        return current is not None and worker in current.workers and worker in self._members

    def leads(self, worker: int) -> bool:
        """Whether a living worker is rank 0 of the newest ring, which saves."""
        current = self.ring.current
        return current is not None and current.workers[0] == worker and worker in self._members

    def may_lease(self, member: Member) -> bool:
        """Whether a worker has a model to evaluate."""
        return not self._tasks.lockstep or self.has(member.id)

    def may_snapshot(self, member: Member) -> bool:
        """Whether the model of a worker is as far as a checkpoint of now has to be."""
        main = self._tasks.main
        if not self._tasks.lockstep or main is None or not self._tasks.trained:
            return True
        # The last step may have come through at some members only.
        at_end = member.heartbeat.position >= main.records_done
        return at_end and member.heartbeat.ring == self.ring.number

    def may_drain(self, worker: int) -> bool:
        """Whether another worker, which stays, has the model too."""
        if self.ring.keeps_model(worker):
            return False
        living = self.ring.living()
        others = [self._members.get(other) for other in living - {worker}]
        return worker not in living or any(m is not None and not m.draining for m in others)
