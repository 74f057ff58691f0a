"""Control numbers that travel with the gradients, so that what members must know of each other at
each update costs no collective of its own. Pure.

Members receive the sums over all members. Checksums travel in parts of 8 bits, so that the sums
stay exact in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_SHIFTS = (0, 8, 16, 24)
_FLAGS = 4
COUNT = _FLAGS + 2 * len(_SHIFTS)


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
        numbers: the sums of :meth:`ControlFlags.numbers`; none: nothing was told yet.
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


def _parts(checksum: int) -> list[float]:
    return [float(checksum >> shift & 255) for shift in _SHIFTS]
