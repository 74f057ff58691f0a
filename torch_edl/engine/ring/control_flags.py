"""Control numbers that are summed together with the gradients, so that exchanging the state of the
members needs no extra collective."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from torch_edl.data.task_space import SEED_SAMPLES
from torch_edl.engine.replica import ModelReplica
from torch_edl.engine.ring.membership import RingMembership
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.errors import EdlError

UNAUTHORIZED = "no member has heard of the master lately"

# 32-bit checksums are sent as four bytes, so that sums over members are exact in float32.
_SHIFTS = (0, 8, 16, 24)


class DivergedError(EdlError):
    """The members do not do the same, or their parameters differ, because the script is not
    deterministic."""


class ControlFlags:
    """Sends this member's state to the other members, and checks their states.

    Args:
        check_every: number of updates between comparisons of a parameter checksum; 0 for never.
    """

    COUNT = 4 + 3 * len(_SHIFTS)
    """Number of control numbers."""

    def __init__(
        self,
        replica: ModelReplica,
        rendezvous: RingRendezvous | None,
        membership: RingMembership,
        check_every: int,
    ) -> None:
        self.skip = False
        """True if the script of this member skipped its batch of the current update."""
        self.stale = self.skipped = self.leaving = 0
        """Numbers of members, as of the newest update: members that request another ring, members
        that skipped their batch, and members that were asked to leave."""
        self._replica = replica
        self._rendezvous = rendezvous
        self._membership = membership
        self._check_every = check_every
        self._place = self._samples = 0
        self._sent: list[float] = []

    def clear(self) -> None:
        """Reset the counts before another ring is formed."""
        self.stale = self.skipped = self.leaving = 0

    def begin_update(self, records: int) -> None:
        """Begin an update of ``records`` records at the current position."""
        self.skip = False
        if self._rendezvous is not None:
            at = self._replica.position
            place = json.dumps([at.pass_index, at.records, records, at.data, at.epochs])
            self._place = zlib.crc32(place.encode())
            self._samples = zlib.crc32(at.data.get("samples", "").encode())

    def send(self) -> list[float]:
        """Return the numbers of this member, to be summed over all members."""
        rendezvous, step = self._rendezvous, self._replica.position.step
        assert rendezvous is not None
        stale = rendezvous.is_stale(self._membership.ring)
        due = self._check_every and step % self._check_every == 0
        digest = self._replica.digest() if due else 0
        values = (self._samples, self._place, digest)
        self._sent = [
            *map(float, (stale, rendezvous.authorized, self.skip, rendezvous.leaving)),
            *(float(value >> shift & 255) for value in values for shift in _SHIFTS),
        ]
        return self._sent

    def receive(self, sums: Sequence[float]) -> str:
        """Evaluate the sums over all members; return the reason to reject the update, or "".

        Raises:
            DivergedError: the members are not at the same position or differ in their parameters.
        """
        self.stale, authorized, self.skipped, self.leaving = map(int, sums[:4])
        position, world = self._replica.position, self._membership.world
        same = [total == world * own for total, own in zip(sums, self._sent, strict=True)]
        place, digest = 4 + len(_SHIFTS), 4 + 2 * len(_SHIFTS)
        if not authorized:
            return UNAUTHORIZED
        if not all(same[4:place]):
            raise DivergedError(
                f"the dataset of this process, of {position.data.get('records', 0):,} records, "
                f"stores other samples than that of another process; {SEED_SAMPLES}"
            )
        if not all(same[place:digest]):
            raise DivergedError(
                f"the processes are not at the same place: this one is at record "
                f"{position.records:,} of pass {position.pass_index}, over {position.data}; every "
                "process must go through the same loaders and evaluations, over the same data, "
                "and leave a loop at the same job.step"
            )
        if not all(same[digest:]):
            raise DivergedError(
                f"step {position.step}: the parameters of the members differ; something in the "
                "script depends on the process (the rank, a random number, a condition on a local "
                "value), see the docs on what must be alike"
            )
        return ""
