"""Numbers that travel with the gradients: what members must know of each other at each update
costs no collective of its own. Pure.

What arrives are sums over all members. Checksums travel in parts of 8 bits, so that the sums stay
exact in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

COUNT = 12
_FLAGS = 4
_PARTS = (0, 8, 16, 24)


class ControlFlags(NamedTuple):
    """One member's word."""

    stale: bool
    """It wants another ring."""
    authorized: bool
    """It has heard of the master lately."""
    skips: bool
    """Its script left the batch out: it does not do to the model what the others do."""
    leaving: bool
    """It was asked to leave."""
    place: int
    """Checksum of its place in the data, 32 bits."""
    digest: int
    """Checksum of its parameters, 32 bits; 0: not taken."""

    def numbers(self) -> list[float]:
        """To be summed."""
        flags = (self.stale, self.authorized, self.skips, self.leaving)
        return [*map(float, flags), *_parts(self.place), *_parts(self.digest)]


class ControlSums:
    """What all members said together.

    Args:
        numbers: the sums, ``COUNT`` of them.
        world: members.
    """

    def __init__(self, numbers: Sequence[float], world: int) -> None:
        self.stale, self.authorized, self.skip, self.leaving = map(int, numbers[:_FLAGS])
        """How many members each."""
        self._world = world
        middle = _FLAGS + len(_PARTS)
        self._place, self._digest = list(numbers[_FLAGS:middle]), list(numbers[middle:])

    def same_place(self, place: int) -> bool:
        """Whether all are where this member is."""
        return self._place == [self._world * part for part in _parts(place)]

    def same_digest(self, digest: int) -> bool:
        """Whether all have the parameters of this member."""
        return self._digest == [self._world * part for part in _parts(digest)]


def _parts(checksum: int) -> list[float]:
    return [float(checksum >> shift & 255) for shift in _PARTS]
