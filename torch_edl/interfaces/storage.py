"""Storage: files behind URLs, read in ranges."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Stamp(NamedTuple):
    """The identity of the content of a path or URL; changed content has another stamp."""

    size: int
    """Size in bytes."""
    mtime_ns: int
    """Modification time in ns since the epoch; 0: unknown."""
    inode: int
    """Inode of a file; for an object, a checksum of the content's tag (ETag) in its store."""


class StoredBytes(Protocol):
    """The bytes of a file, on this machine or in a store."""

    stamp: Stamp
    size: int
    """Size in bytes."""

    def will_read(self, start: int, end: int) -> None:
        """Announce that these bytes will be read in order, so that requests may be large."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``; the range must be within the file.

        Raises:
            DataError: the file cannot be read, or has changed.
        """

    def view_at(self, offset: int, size: int) -> memoryview:
        """Return the bytes of :meth:`read_at`, without a copy if possible."""

    def check(self) -> None:
        """Raise DataError if the file has changed since it was opened."""

    def close(self) -> None:
        """Close the file.

        Raises:
            DataError: the file has changed since it was opened, and is in a store.
        """


class Storage(Protocol):
    """A kind of store of files, named by an entry point of the group ``torch_edl.storages``. The
    name of the entry point is a scheme of URLs, or ``*`` for all other schemes."""

    def open_object(self, url: str, expect: Stamp | None = None) -> StoredBytes:
        """Open a file.

        Args:
            expect: expected stamp of the file; None: the current stamp is requested.

        Raises:
            UsageError: the URL is not supported, a package is missing, or no connection was made.
            DataError: the file does not exist, or cannot be read.
        """

    def matching(self, pattern: str) -> list[str]:
        """Return the sorted URLs of the files that a URL, a folder or a pattern names.

        Raises:
            UsageError: see :meth:`open_object`.
            DataError: the store cannot be listed.
        """
