"""Limit the number of connections that are not authenticated yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

MOST = 256
"""Largest number of unauthenticated connections from all addresses together."""
MOST_OF_ADDRESS = 64
"""Largest number of unauthenticated connections from one address."""

K = TypeVar("K", bound=Hashable)


class Newcomers(Generic[K]):
    """Selects the connections to close if there are too many.

    The oldest connection of the same address is closed, or of the address with the most
    connections. Processes of the job authenticate within milliseconds, so the oldest connection
    most likely belongs to another process, and other processes mainly affect their own address.
    """

    def __init__(self, most: int = MOST, most_of_address: int = MOST_OF_ADDRESS) -> None:
        self._most, self._most_of_address = most, most_of_address
        self._address: dict[K, str] = {}  # the oldest first
        self._count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._address)

    def add(self, connection: K, address: str) -> K | None:
        """Add a connection; return the connection to close instead, already removed, or None."""
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
        """Remove a connection that was authenticated or has ended."""
        address = self._address.pop(connection, None)
        if address is not None:
            self._count[address] -= 1
