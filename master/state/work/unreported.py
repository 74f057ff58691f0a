"""Progress within leased tasks, as heartbeats report it. Pure."""

from __future__ import annotations

from master.state.membership import Member, Membership
from master.state.work.tasks import TaskQueue


class Unreported:
    """The sum over all workers. It is computed ten times a second, so only workers whose counts
    changed are summed anew."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        self._of: dict[int, tuple[int, int]] = {}
        self._sum: tuple[int, ...] = (0, 0)

    def done(self, members: Membership) -> tuple[int, int]:
        """Return (records, minibatches) of all workers."""
        for worker in members.take_moved() | self._queue.take_moved():
            now, before = self._done_by(members.get(worker)), self._of.pop(worker, (0, 0))
            if now != (0, 0):
                self._of[worker] = now
            self._sum = tuple(
                all + new - old for all, new, old in zip(self._sum, now, before, strict=True)
            )
        records, steps = self._sum
        return records, steps

    def _done_by(self, member: Member | None) -> tuple[int, int]:
        if member is None:
            return 0, 0
        records = member.heartbeat.records - member.reported_records
        steps = member.heartbeat.steps - member.reported_steps
        if records <= 0 and steps <= 0:
            return 0, 0
        # A heartbeat may include work that a report counted since, so the result is capped by the
        # open work.
        open_records, open_steps = self._queue.open_steps(member.id)
        return min(max(0, records), open_records), min(max(0, steps), open_steps)
