"""The interface of kinds of data, and of storages: files behind URLs, read in ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Union, runtime_checkable

from torch_edl.errors import UsageError


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


if TYPE_CHECKING:
    import pyarrow as pa


Records = Union[list[bytes], "pa.Table"]
"""``list[bytes]`` from formats of opaque records, a ``pyarrow.Table`` from formats with columns."""

ENDLESS = 1 << 62
"""The number of records of a stream, which has no end."""


@dataclass(frozen=True)
class Metadata:
    """What the user's ``feed`` may want to know about the records that it is given."""

    path: str
    """Absolute path or URL of the file, or the name of an in-memory source."""
    column_names: tuple[str, ...] = ()
    """Names of the columns, in the order of the file; empty where records are bytes."""
    column_types: tuple[str, ...] = ()
    """Types of the columns in Arrow's words (``int64``, ``double``, ``list<element: float>``)."""

    @classmethod
    def of(cls, path: str, schema: pa.Schema) -> Metadata:
        """The metadata of a table with this schema."""
        return cls(path, tuple(schema.names), tuple(map(str, schema.types)))


@runtime_checkable
class Source(Protocol):
    """The records of one file, table or partition (a shard), readable by index by several threads.

    The same name always gives the same records at the same indices: a task that is trained again
    must have the records that it had before. An attribute ``stamp`` is optional: (size in bytes,
    time of the last change in ns) of the content, which a resumed job compares.
    """

    @property
    def name(self) -> str:
        """The name of the shard: the absolute path of a file, or a URL."""

    @property
    def count(self) -> int:
        """The number of usable records; their indices are ``0 .. count - 1``."""

    @property
    def damaged(self) -> int:
        """Records, or blocks of records, that ``skip_damaged`` left out."""

    @property
    def metadata(self) -> Metadata:
        """The name, and for tables the names and types of the columns."""

    def read(self, start: int, end: int) -> Records:
        """Read the records ``start .. end - 1`` without reading the whole shard.

        Raises:
            DataError: the range is damaged, the content changed since it was counted, or the range
                is not within ``0 .. count``.
        """


class SourceType(Protocol):
    """What an entry point of the group ``torch_edl.sources`` names: as a rule a class of sources.

    The name of the entry point is a suffix of files with its dot (``.npy``), or a scheme of URLs
    (``redis``). A type of a suffix is only called. A type of a scheme derives from
    :class:`UrlSource`, or has its class methods.
    """

    def __call__(self, name: str, *, skip_damaged: bool = False) -> Source:
        """Open a shard, and count its records.

        Args:
            name: the absolute path of a file, or one of the names that ``parts`` gave.
            skip_damaged: leave damaged records out, and count them.

        Raises:
            DataError: the data cannot be read, or are damaged.
        """


class UrlSource:
    """Defaults of the class methods by which a job handles the URLs of a kind of source."""

    endless = False
    """True if a URL may be trained as a stream (``--epochs stream``); :meth:`check_stream` and
    :meth:`offsets` are defined then."""

    @classmethod
    def canonical(cls, url: str) -> str:
        """Return the URL as all processes of a job write it; nothing is opened.

        Raises:
            UsageError: a part of the URL is missing or wrong, or it holds a password.
        """
        return url

    @classmethod
    def check(cls, url: str) -> None:
        """Check that the data exist and may be read; nothing is counted.

        Raises:
            UsageError: the URL is wrong, or a driver is missing.
            DataError: there are no such data, or no server answers.
        """

    @classmethod
    def check_stream(cls, url: str) -> None:
        """Check that the data can be trained as a stream: each offset has the same record always.

        Raises:
            UsageError: the data have an end.
            DataError: there are no such data, or records may be removed from the middle.
        """
        raise UsageError(f"{url}: no stream; leave --epochs stream out")

    @classmethod
    def parts(cls, url: str) -> list[str]:
        """Return the names of the shards of a URL, such as the partitions of a topic.

        Raises:
            DataError: there are no such data, or no server answers.
        """
        return [url]

    @classmethod
    def offsets(cls, urls: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the first offset of each shard of some streams, and one after its last.

        Raises:
            DataError: there are no such data, or no server answers.
        """
        raise UsageError(f"{urls[0]}: no stream; leave --epochs stream out")
