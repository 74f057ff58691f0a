"""Connections whose other side has not proved yet that it is of the job: how many there may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

MOST = 256
"""Of all addresses; the connections of the job itself do not count once they have proved it."""
MOST_OF_ADDRESS = 64

K = TypeVar("K", bound=Hashable)


class Newcomers(Generic[K]):
    """Decides which connections to close where there are too many: the oldest of their address,
    or of the address that has the most. A process of the job proves itself in milliseconds, so that
    the oldest is most likely a stranger's, and strangers cost their own address the most."""

    def __init__(self, most: int = MOST, most_of_address: int = MOST_OF_ADDRESS) -> None:
        self._most, self._most_of_address = most, most_of_address
        self._address: dict[K, str] = {}  # the oldest first
        self._count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._address)

    def add(self, connection: K, address: str) -> K | None:
        """Add a connection; return the one to close for it, which counts no more."""
        self._address[connection] = address
        self._count[address] += 1
        if self._count[address] <= self._most_of_address:
            if len(self) <= self._most:
                return None
            address = self._count.most_common(1)[0][0]
        oldest = next(each for each, its in self._address.items() if its == address)
        self.remove(oldest)
        return oldest

    def remove(self, connection: K) -> None:
        """Forget a connection that has proved itself, or has ended."""
        address = self._address.pop(connection, None)
        if address is not None:
            self._count[address] -= 1
