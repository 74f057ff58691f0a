"""The ring of a job, and what it means for the data and the model: the strategy ``allreduce``.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from master.state.fleet import Fleet
from master.state.membership import Member, Membership
from master.state.ring import Formed, Ring
from master.state.task_scheduler import Work
from torch_edl.wire import master_pb2 as pb


class Lockstep:
    """Forms rings, and moves the training data on as their members do.

    Args:
        renew: begins a new life of the model: (why, now). The fleet knows then what from.
        formed: hears of each ring: (text, now).
    """

    def __init__(
        self,
        fleet: Fleet,
        members: Membership,
        work: Work,
        *,
        min_workers: int,
        renew: Callable[[str, float], None],
        formed: Callable[[str, float], None],
    ) -> None:
        self.ring = Ring()
        self.moved = False
        """A ring was formed since this was last set to false."""
        self._fleet = fleet
        self._members = members
        self._work = work
        self._min_workers = min_workers
        self._renew = renew
        self._formed = formed

    def join(self, member: Member, request: pb.JoinRingRequest, now: float) -> Formed | None:
        """A worker asks into the next ring; None while it is not formed."""
        member.last_heartbeat = now
        formed = self.ring.ask(member.id, request.ring, request.step, request.store, now)
        if formed is None and self.form(now):
            formed = self.ring.current
        return formed

    def stand_by(self, member: Member, request: pb.StandByRequest, now: float) -> Formed | None:
        """The script of a worker is over; a ring in which it is to give its model, or None."""
        member.last_heartbeat = now
        formed = self.ring.stand_by(member.id, request.ring, request.step, request.store, now)
        if formed is None and self.form(now):
            current = self.ring.current
            assert current is not None
            formed = current if member.id in current.workers else None
        return formed

    def form(self, now: float) -> bool:
        """Makes the next ring if it is time; returns whether it did."""
        wanted = self._fleet.workers_wanted
        least = min(self._min_workers, wanted)
        if not self.ring.due(now, min_workers=least, max_workers=wanted):
            return False
        if self.ring.model_lost:
            self._renew("no worker that is left has the model", now)
        formed = self.ring.form(
            restored_from=self._fleet.restored_from, values_only=self._fleet.values_only
        )
        count = len(formed.workers)
        self._formed(f"ring {formed.number}: {count} worker{'s' * (count != 1)}", now)
        self.moved = True
        return True

    def has(self, worker: int) -> bool:
        """Whether a living worker was taken into the newest ring, though it may have left it."""
        current = self.ring.current
        return current is not None and worker in current.workers and worker in self._members

    def stepped(self, member: Member) -> bool:
        """A worker told where it is; whether that is the place of the ring."""
        main, ring = self._work.main, self.ring
        if main is None or not self._work.lockstep or not self.has(member.id):
            return False
        # What it tells of an earlier ring may be of a model that is lost.
        if member.ring != ring.number or member.data_pass != 0:
            return False
        main.queue.advance(member.position)
        return True

    def may_lease(self, member: Member) -> bool:
        """Whether a worker has a model to evaluate."""
        return not self._work.lockstep or self.has(member.id)

    def may_snapshot(self, member: Member) -> bool:
        """Whether the model of a worker is as far as a checkpoint of now has to be."""
        main = self._work.main
        if not self._work.lockstep or main is None or not self._work.trained:
            return True
        # The last step may have come through at some of them only.
        at_end = member.position >= main.queue.records_done
        return at_end and member.ring == self.ring.number

    def may_drain(self, worker: int) -> bool:
        """Whether somebody who stays has the model, too."""
        if self.ring.keeps_model(worker):
            return False
        living = self.ring.living()
        others = [self._members.get(other) for other in living - {worker}]
        return worker not in living or any(m is not None and not m.draining for m in others)
