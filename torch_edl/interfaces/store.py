"""The interface of stores of the master's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """The value of a key of a store."""

    value: bytes
    revision: int
    """Revision of the last write of the key. Revisions grow over all keys of a store."""


class Store(ABC):
    """Keys with values, written together or not at all, for the state of a master. Thread-safe.

    An entry point of the group ``torch_edl.stores`` names a :class:`StoreType`; the name of the
    entry point is the scheme of ``--store SCHEME://...``. A file of sqlite is built in.

    Raises:
        OSError: any method may raise it: the store does not answer, or rejects what it is given. A
            write may have been done all the same.
    """

    lock_ttl_s: float
    """Seconds for which a lock lives without a renewal: the longest absence of the store that an
    owner bridges, and the time after which another master may take the lock."""
    renew_s = 0.0
    """Minimum seconds between two renewals of the lock; 0: each second."""

    @abstractmethod
    def get(self, key: str) -> Entry | None:
        """Return the value of a key; None if there is no such key."""

    @abstractmethod
    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        """Write all keys of ``puts``, or none.

        Args:
            expected: revisions that keys must have, these or others; 0: the key must not exist.

        Returns:
            The revision that the keys have then, larger than all before.

        Raises:
            StoreConflictError: a key has another revision than expected.
        """

    @abstractmethod
    def clear(self, expected: Mapping[str, int]) -> None:
        """Remove all keys, or none; revisions grow on.

        Args:
            expected: as in :meth:`commit`.

        Raises:
            StoreConflictError: a key has another revision than expected.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all files and connections."""


class StoreType(Protocol):
    """What an entry point of the group ``torch_edl.stores`` names."""

    def check(self, url: str) -> None:
        """Check the URL of ``--store`` before a job is started; nothing is opened.

        The client calls it, which may run on another machine than the master.

        Raises:
            UsageError: the URL is wrong.
        """

    def open(self, url: str, job: str) -> Store:
        """Open the store for one job.

        Args:
            job: a name that no other job has in this store, nor had before.

        Raises:
            UsageError: a library is missing, or a variable of the environment is wrong.
            OSError: the store does not answer.
        """
