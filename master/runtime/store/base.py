"""The interface of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """What a key has."""

    value: bytes
    revision: int
    """Of the last write of the key. Revisions grow over all keys of a store."""


class Store(ABC):
    """Keys with values, written together or not at all. Thread-safe.

    Raises:
        OSError: the store does not answer, or rejects what it is given; any method may. A write
            may have been done all the same.
    """

    lock_ttl_s: float
    """How long a lock lives without a renewal: the longest absence of the store that an owner
    bridges, and the time after which another may take the lock of an owner that is gone."""

    @abstractmethod
    def get(self, key: str) -> Entry | None:
        """What the key has; None if there is no such key."""

    @abstractmethod
    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        """Writes all keys of ``puts``, or none.

        Args:
            expected: revisions that keys must have, these or others; 0: the key must not exist.

        Returns:
            The revision that the keys have then, larger than all before.

        Raises:
            StoreConflictError: a key has another revision than expected.
        """

    @abstractmethod
    def clear(self, expected: Mapping[str, int]) -> None:
        """Removes all keys, or none; revisions grow on.

        Args:
            expected: as of :meth:`commit`.

        Raises:
            StoreConflictError: a key has another revision than expected.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of files and connections."""
