"""Control numbers that travel with the gradients, so that what members must know of each other at
each update costs no collective of its own.

Members receive the sums over all members. Checksums travel in parts of 8 bits, so that the sums
stay exact in float32.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from torch_edl.engine.replica import Replica
from torch_edl.engine.ring.membership import Membership
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.errors import EdlError

_SHIFTS = (0, 8, 16, 24)
_FLAGS = 4
COUNT = _FLAGS + 2 * len(_SHIFTS)
"""How many control numbers there are."""

UNAUTHORIZED = "no member has heard of the master lately"


class DivergedError(EdlError):
    """The parameters of two members differ: something in the script is not the same in all."""


class ControlFlags(NamedTuple):
    """What one member tells the others."""

    stale: bool
    """The member wants another ring."""
    authorized: bool
    """The member has heard of the master lately."""
    skipped: bool
    """The member's script left the batch out: it does not do to the model what the others do."""
    leaving: bool
    """The member was asked to leave."""
    place: int
    """Checksum of the member's place in the data, 32 bits."""
    digest: int
    """Checksum of the member's parameters, 32 bits; 0: not computed for this update."""

    def numbers(self) -> list[float]:
        """``COUNT`` numbers to be summed over all members."""
        flags = (self.stale, self.authorized, self.skipped, self.leaving)
        return [*map(float, flags), *_parts(self.place), *_parts(self.digest)]


class ControlSums:
    """What all members of a ring told together.

    Args:
        numbers: the sums of :meth:`ControlFlags.numbers`.
        world: members of the ring.
    """

    def __init__(self, numbers: Sequence[float] = (0.0,) * COUNT, world: int = 0) -> None:
        self.stale, self.authorized, self.skipped, self.leaving = map(int, numbers[:_FLAGS])
        """How many members each."""
        self._world = world
        middle = _FLAGS + len(_SHIFTS)
        self._place, self._digest = list(numbers[_FLAGS:middle]), list(numbers[middle:])

    def same_place(self, place: int) -> bool:
        """Whether all members are at this place in the data."""
        return self._place == [self._world * part for part in _parts(place)]

    def same_digest(self, digest: int) -> bool:
        """Whether the parameters of all members have this checksum."""
        return self._digest == [self._world * part for part in _parts(digest)]


class Controls:
    """Tells the other members of this one's state, and checks what they tell.

    Args:
        check_every: compare a checksum of all parameters every so many updates; 0: never.
    """

    def __init__(
        self,
        replica: Replica,
        rendezvous: RingRendezvous | None,
        membership: Membership,
        check_every: int,
    ) -> None:
        self.skipped = False
        """The script of this member left its batch out of the update that is open."""
        self.sums = ControlSums()
        """What all members told with the newest update of the ring."""
        self._replica = replica
        self._rendezvous = rendezvous
        self._membership = membership
        self._check_every = check_every
        self._place = self._digest = 0

    def clear(self) -> None:
        """Another ring is about to be formed: nothing was told in it yet."""
        self.sums = ControlSums()

    def begin_update(self, records: int) -> None:
        """An update of so many records begins where this member is in the data."""
        self.skipped = False
        if self._rendezvous is not None:
            at = self._replica.position
            place = json.dumps([at.pass_index, at.records, records, at.data, at.epochs])
            self._place = zlib.crc32(place.encode())

    def send(self) -> list[float]:
        """The control numbers of this member."""
        rendezvous, step = self._rendezvous, self._replica.position.step
        assert rendezvous is not None
        due = self._check_every and step % self._check_every == 0
        self._digest = self._replica.digest() if due else 0
        return ControlFlags(
            stale=rendezvous.is_stale(self._membership.ring),
            authorized=rendezvous.authorized,
            skipped=self.skipped,
            leaving=rendezvous.leaving,
            place=self._place,
            digest=self._digest,
        ).numbers()

    def receive(self, numbers: Sequence[float]) -> str:
        """Takes the sums over all members; returns why the update is rejected, or an empty text.

        Raises:
            DivergedError: the members do not do the same.
        """
        self.sums = ControlSums(numbers, self._membership.world)
        position = self._replica.position
        if not self.sums.authorized:
            return UNAUTHORIZED
        if not self.sums.same_place(self._place):
            raise DivergedError(
                f"the processes are not at the same place: this one is at record "
                f"{position.records:,} of pass {position.pass_index}, over {position.data}; every "
                "process must go through the same loaders and evaluations, over the same data, "
                "and leave a loop at the same job.step"
            )
        if not self.sums.same_digest(self._digest):
            raise DivergedError(
                f"step {position.step}: the parameters of the members differ; something in the "
                "script depends on the process (the rank, a random number, a condition on a local "
                "value), see the docs on what must be alike"
            )
        return ""


def _parts(checksum: int) -> list[float]:
    return [float(checksum >> shift & 255) for shift in _SHIFTS]
