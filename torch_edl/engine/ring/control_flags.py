"""Control numbers that travel with the gradients, so that what members must know of each other at
each update costs no collective of its own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from torch_edl.data.task_space import SEED_SAMPLES
from torch_edl.engine.ring.membership import Membership
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.engine.ring.replicated import SharedReplica
from torch_edl.errors import EdlError

UNAUTHORIZED = "no member has heard of the master lately"

# Checksums of 32 bits travel in parts of 8, so that sums over members stay exact in float32.
_SHIFTS = (0, 8, 16, 24)


class DivergedError(EdlError):
    """The parameters of two members differ: something in the script is not the same in all."""


class ControlFlags:
    """Tells the other members of this one's state, and checks what they tell.

    Args:
        check_every: compare a checksum of all parameters every so many updates; 0: never.
    """

    COUNT = 4 + 3 * len(_SHIFTS)
    """How many numbers travel."""

    def __init__(
        self,
        replica: SharedReplica,
        rendezvous: RingRendezvous | None,
        membership: Membership,
        check_every: int,
    ) -> None:
        self.skip = False
        """The script of this member left its batch out of the update that is open."""
        self.stale = self.skipped = self.leaving = 0
        """With the newest update of the ring: how many members want another ring, how many left
        their batch out, and how many were asked to leave."""
        self._replica = replica
        self._rendezvous = rendezvous
        self._membership = membership
        self._check_every = check_every
        self._place = self._samples = 0
        self._sent: list[float] = []

    def clear(self) -> None:
        """Another ring is about to be formed: its members told nothing yet."""
        self.stale = self.skipped = self.leaving = 0

    def begin_update(self, records: int) -> None:
        """An update of so many records begins where this member is in the data."""
        self.skip = False
        if self._rendezvous is not None:
            at = self._replica.position
            place = json.dumps([at.pass_index, at.records, records, at.data, at.epochs])
            self._place = zlib.crc32(place.encode())
            self._samples = zlib.crc32(at.data.get("samples", "").encode())

    def send(self) -> list[float]:
        """The numbers of this member, to be summed over all members."""
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
        """Takes the sums over all members; returns why the update is rejected, or an empty text.

        Raises:
            DivergedError: the members do not do the same.
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
