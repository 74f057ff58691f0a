"""Files of records, which are series of blocks that decode by themselves.

A format finds the blocks of a file in one scan, and decodes one; this module caches the index of
the blocks, finds those of a range, keeps the last ones decoded, and cuts the range out.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from torch_edl.data.sources.base import Metadata, Records, concat, cut
from torch_edl.environment import edl_home
from torch_edl.errors import DataError
from torch_edl.files import replacing

log = logging.getLogger(__name__)

CACHE_BYTES = 128 << 20
"""Decoded blocks kept per process, over all sources; the newest block is always kept."""

MAX_RECORD_BYTES = 1 << 30
"""A length field above this is damage: no record, chunk or row is that long."""

MIN_CACHED_BYTES = 1 << 20
"""Smaller files are scanned each time: it is as fast, and leaves no litter beside them."""

_INDEX_VERSION = 3  # raise it when an index of the old code would mislead the new

_BYTES_OVERHEAD = 64  # of a ``bytes`` object in a list, beside its content


# ---- files ----


class Stamp(NamedTuple):
    """What tells one content of a path from another."""

    size: int
    mtime_ns: int
    inode: int


class DataFile:
    """An open data file without a position of its own, so that threads can share it."""

    def __init__(self, path: str, expect: Stamp | None = None) -> None:
        """Opens ``path``.

        Raises:
            DataError: it cannot be opened, or its stamp is not ``expect``.
        """
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror}") from error
        status = os.fstat(self._file.fileno())
        self.stamp = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        self.size = status.st_size
        if expect is not None and self.stamp != expect:
            self._file.close()
            raise DataError(path, "changed while the job was using it; start the job again")

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``; nothing is allocated for what is not there.

        Raises:
            DataError: the file ends before, or the disk failed.
        """
        if size < 0 or offset + size > self.size:
            raise DataError(self.path, f"needs {size} bytes, the file ends before", offset)
        parts = []
        while size:
            try:
                part = os.pread(self._file.fileno(), min(size, 1 << 30), offset)
            except OSError as error:
                raise DataError(self.path, f"cannot be read: {error.strerror}", offset) from error
            if not part:
                raise DataError(self.path, "was cut short while the job was using it", offset)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


class WholeFile:
    """A writer whose file appears whole when its ``with`` block ends; not at all if that raises."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._opened = self._open(path)

    @contextlib.contextmanager
    def _open(self, path: str | os.PathLike[str]) -> Iterator[None]:
        with replacing(path) as self._file:
            yield
            self._finish()

    def __enter__(self) -> Self:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def _finish(self) -> None:
        """Writes what is still held back."""


# ---- the index of a file ----


@dataclass(frozen=True)
class Index:
    """The blocks of a file. A block is what is read and decoded at once (a chunk, a row group)."""

    blocks: npt.NDArray[np.int64]
    """(n, 3): where each block begins (a byte, or the number of the row group), how many bytes it
    has, and how many usable records, at least 1."""
    damaged: int = 0
    """What was left out."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else the format found out (dialect, columns); JSON values."""

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int, int]], damaged: int = 0, **details: Any) -> Index:
        """An index of ``(offset, length, count)`` blocks; those without records are left out."""
        rows = [block for block in blocks if block[2]]
        return cls(np.array(rows, dtype=np.int64).reshape(-1, 3), damaged, details)


def cached(
    path: str, kind: str, skip_damaged: bool, scan: Callable[[DataFile], Index]
) -> tuple[Index, Stamp]:
    """The index of ``path``: from the cache if it is of this very content, else by ``scan``.

    The cache is a small file beside the data, or under ``edl_home()/cache`` where that folder is
    not writable. One that is stale, damaged or unreadable is made anew.

    Args:
        path: absolute path of the data file.
        kind: format of the file; each has its own cache, and so has ``skip_damaged``.
        skip_damaged: whether ``scan`` leaves damage out.
        scan: makes the index of the opened file in one pass.

    Raises:
        DataError: the file cannot be read, or ``scan`` found damage.
    """
    with DataFile(path) as file:
        if file.size < MIN_CACHED_BYTES:
            return scan(file), file.stamp
        about = {"path": path, "kind": kind, "skip_damaged": skip_damaged}
        key = {**about, "version": _INDEX_VERSION, **file.stamp._asdict()}
        places = _places(path, f"{kind}{'-skip' if skip_damaged else ''}")
        found = next(filter(None, (_load(place, key) for place in places)), None)
        index = scan(file) if found is None else found
    if found is None:
        any(_save(place, key, index) for place in places)
    return index, file.stamp


def _places(path: str, kind: str) -> tuple[str, str]:
    folder, name = os.path.split(path)
    hashed = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return (
        os.path.join(folder, f".{name}.{kind}.edl-index"),
        str(edl_home() / "cache" / f"{hashed}.{kind}.edl-index"),
    )


def _load(place: str, key: dict[str, Any]) -> Index | None:
    """The index in ``place`` if it is whole and has this key."""
    try:
        with open(place, "rb") as file:
            checksum, _, content = file.read().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return None
        head, _, body = content.partition(b"\n")
        found = json.loads(head)
        if found["key"] != key:
            return None
        blocks = np.frombuffer(body, "<i8").reshape(-1, 3)
        return Index(blocks.astype(np.int64), found["damaged"], found["details"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Not there, or damaged: both mean that the data is scanned.


def _save(place: str, key: dict[str, Any], index: Index) -> bool:
    head = {"key": key, "damaged": index.damaged, "details": index.details}
    content = json.dumps(head).encode() + b"\n" + index.blocks.astype("<i8").tobytes()
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with replacing(place) as file:
            file.write(b"%08x\n" % zlib.crc32(content) + content)
    except OSError as error:
        log.debug("no index cached in %s: %s", place, error)
        return False
    return True


# ---- blocks ----


class BlockCache:
    """Decoded blocks of all sources, least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, int], tuple[Records, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int]) -> Records | None:
        with self._lock:
            found = self._blocks.get(key)
            if found is None:
                return None
            self._blocks.move_to_end(key)
            return found[0]

    def put(self, key: tuple[int, int], records: Records) -> None:
        if isinstance(records, list):
            size = sum(map(len, records)) + _BYTES_OVERHEAD * len(records)
        else:
            size = records.get_total_buffer_size()
        with self._lock:
            if key in self._blocks:  # Two threads decoded it at once.
                return
            self._blocks[key] = (records, size)
            self._bytes += size
            while self._bytes > CACHE_BYTES and len(self._blocks) > 1:
                _, (_, freed) = self._blocks.popitem(last=False)
                self._bytes -= freed


cache = BlockCache()
"""Keys are (number of the source, number of the block)."""

source_numbers = itertools.count()
"""For the sources of this process."""


class BlockSource(ABC):
    """A :class:`Source` over one file; a format adds its scan and :meth:`decode`.

    Attributes:
        stamp: size in bytes, and time of the last change in ns, of the file when it was opened.
    """

    def __init__(self, stamp: Stamp, index: Index, metadata: Metadata) -> None:
        self.name = metadata.path
        self.metadata = metadata
        self.stamp = stamp.size, stamp.mtime_ns
        self.damaged = index.damaged
        self._opened = stamp
        self._blocks = index.blocks
        self._ends = np.cumsum(index.blocks[:, 2])
        self.count = int(self._ends[-1]) if len(self._ends) else 0
        self._number = next(source_numbers)

    def read(self, start: int, end: int) -> Records:
        """See :meth:`Source.read`."""
        if not 0 <= start <= end <= self.count:
            raise DataError(
                self.name,
                f"asked for records {start} to {end}, it has {self.count}; if the file changed, "
                "start the job again",
            )
        if start == end:
            return self.empty()
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, end, side="left"))
        parts = []
        for block in range(first, last + 1):
            count = int(self._blocks[block, 2])
            begin = int(self._ends[block]) - count
            parts.append(self.part(block, max(start - begin, 0), min(end - begin, count)))
        return concat(parts)

    def part(self, block: int, start: int, end: int) -> Records:
        """The records ``start .. end - 1``, at least one, of a block of the index."""
        return cut(self._block(block), start, end)

    def _block(self, block: int) -> Records:
        key = (self._number, block)
        records = cache.get(key)
        if records is None:
            with DataFile(self.name, expect=self._opened) as file:
                records = self.decode(file, *self._blocks[block].tolist())
            cache.put(key, records)
        return records

    def empty(self) -> Records:
        """No records, of the type and schema of this source."""
        return []

    @abstractmethod
    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """All ``count`` records of the block that the index describes.

        Raises:
            DataError: the block is damaged, or does not hold ``count`` records.
        """
