"""A shuffle that is a pure function of (seed, epoch) and takes no memory.

A Feistel network permutes [0, 2^k) whatever its round function is; walking its cycles until a
number below n comes out restricts that to [0, n) (Black and Rogaway, Ciphers with Arbitrary
Finite Domains, 2002). At most one number in four is out of range in a step, on average.
"""

from __future__ import annotations

_ROUNDS = 6
_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every bit of the input moves half the bits of the output."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class Permutation:
    """A bijection of [0, size)."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self._half = max(1, (max(0, size - 1).bit_length() + 1) // 2)
        self._low = (1 << self._half) - 1
        key = _mix((seed & _MASK) + 0x9E3779B97F4A7C15)
        key = _mix(key ^ (epoch + 1))
        self._keys = []
        for _ in range(_ROUNDS):
            key = _mix((key + 0x9E3779B97F4A7C15) & _MASK)
            self._keys.append(key)

    def forward(self, value: int) -> int:
        """What stands at position ``value``; 0 <= value < size."""
        while True:
            left, right = value >> self._half, value & self._low
            for key in self._keys:
                left, right = right, left ^ (_mix(right ^ key) & self._low)
            value = (left << self._half) | right
            if value < self.size:
                return value

    def inverse(self, value: int) -> int:
        """The position at which ``value`` stands."""
        while True:
            left, right = value >> self._half, value & self._low
            for key in reversed(self._keys):
                left, right = right ^ (_mix(left ^ key) & self._low), left
            value = (left << self._half) | right
            if value < self.size:
                return value
