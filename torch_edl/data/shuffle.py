"""The order of shuffled data, as a pure function of the job's seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ROUNDS = 6
_MASK = (1 << 64) - 1


class Permutation:
    """A permutation of [0, size), as a pure function of a seed and numbers that needs no memory.

    A Feistel network permutes [0, 2^k) for any round function. Walking its cycles until a number is
    below ``size`` restricts the permutation to [0, size) (Black and Rogaway, Ciphers with Arbitrary
    Finite Domains, 2002). 2^k is at most 4 * size, so a walk takes at most four steps on average.

    Args:
        seed: seed of the job.
        numbers: what is shuffled, such as the number of the epoch.
    """

    def __init__(self, size: int, seed: int, *numbers: int) -> None:
        self.size = size
        self._half = max(1, (max(0, size - 1).bit_length() + 1) // 2)
        self._low = (1 << self._half) - 1
        state = _mix((seed & _MASK) + 0x9E3779B97F4A7C15)
        for number in numbers:
            state = _mix(state ^ (number + 1))
        self._keys = []
        for _ in range(_ROUNDS):
            state = _mix((state + 0x9E3779B97F4A7C15) & _MASK)
            self._keys.append(state)

    def forward(self, value: int) -> int:
        """Return the number at position ``value``; 0 <= value < size."""
        while (value := self._step(value)) >= self.size:
            pass
        return value

    def span(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the numbers at the positions ``first .. last - 1``; a million take 0.2 s."""
        # Imported here, since the master needs no arrays.
        import numpy as np

        values = self._step(np.arange(first, last, dtype=np.uint64))
        while len(outside := np.flatnonzero(values >= self.size)):
            values[outside] = self._step(values[outside])
        numbers: npt.NDArray[np.int64] = values.astype(np.int64)
        return numbers

    def inverse(self, value: int) -> int:
        """Return the position of the number ``value``; 0 <= value < size."""
        while True:
            left, right = value >> self._half, value & self._low
            for key in reversed(self._keys):
                left, right = right ^ (_mix(left ^ key) & self._low), left
            value = (left << self._half) | right
            if value < self.size:
                return value

    def _step(self, value: Any) -> Any:
        """Permute an integer, or an array of uint64, within [0, 2^k)."""
        left, right = value >> self._half, value & self._low
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._low)
        return (left << self._half) | right


def _mix(value: Any) -> Any:
    """Return the finalizer of splitmix64: each input bit changes half of the output bits."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
