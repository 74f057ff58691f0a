"""Files of records, divided into blocks that can be decoded independently.

A format finds the blocks of a file in one scan, and decodes single blocks. This module caches the
index of the blocks in a small file, finds the blocks of a range, and returns the records of the
range.

All sources of a process share a cache of decoded blocks. A block of a local file is released when
all its records have been read, since the epoch does not need the block again. The next block is
then decoded into the same memory, which avoids the high cost of touching new pages.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from torch_edl.checkpoint.durable import replacing
from torch_edl.config.environment import edl_home
from torch_edl.data.sources.base import concat, cut, is_url
from torch_edl.data.sources.data_file import DataFile, fingerprint, opened
from torch_edl.data.sources.files.partitions import partitions
from torch_edl.errors import DataError
from torch_edl.interfaces import Metadata, Records
from torch_edl.interfaces.source import Stamp

log = logging.getLogger(__name__)

CACHE_BYTES = 128 << 20
"""Maximum size of the decoded blocks in memory, per process."""

MIN_CACHED_BYTES = 1 << 20
"""Minimum size of a file with a cached index. Scanning a smaller file is as fast as reading an
index."""

MAX_RECORD_BYTES = 1 << 30
"""Maximum size of a record or chunk in bytes; a larger length field is damaged."""

MAX_BLOCK_RECORDS = 2**31 - 1
"""Maximum number of records in a block; a larger number is damaged. The number is not limited by
the size of the block, since a column of nulls takes no bytes."""

_BYTES_OVERHEAD = 64  # memory of a ``bytes`` object in a list, without its content
_INDEX_VERSION = 7  # increased when a change makes existing indexes invalid

Key = tuple[int, int]
"""Number of the source, and number of the block."""


class BlockCache:
    """A least recently used cache of decoded blocks.

    Args:
        limit: maximum total size in bytes; the newest block is always kept.
        releases: True if a block is released when all its records have been read.
    """

    def __init__(self, limit: int, *, releases: bool) -> None:
        self.limit = limit
        self.releases = releases
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, tuple[Any, int, int]] = OrderedDict()
        self.bytes = 0
        """Total size of all blocks in bytes."""

    def take(self, key: Key, count: int) -> Any:
        """Return all records of a block and count ``count`` of them as read; None if the block is
        not in the cache. A block without unread records is released."""
        with self._lock:
            found = self._blocks.pop(key, None)
            if found is None:
                return None
            records, size, left = found
            if left > count:
                self._blocks[key] = records, size, left - count
            else:
                self.bytes -= size
            return records

    def put(self, key: Key, records: Any, left: int) -> None:
        """Add a block with ``left`` unread records, and release old blocks above the limit."""
        if left <= 0:
            return
        if isinstance(records, list):
            size = sum(map(len, records)) + _BYTES_OVERHEAD * len(records)
        else:
            size = records.get_total_buffer_size()
        with self._lock:
            if key in self._blocks:  # two threads have decoded the block
                return
            self._blocks[key] = records, size, left
            self.bytes += size
            while self.bytes > self.limit and len(self._blocks) > 1:
                _, (_, freed, _) = self._blocks.popitem(last=False)
                self.bytes -= freed


cache = BlockCache(CACHE_BYTES, releases=True)
"""The block cache of this process."""

source_numbers = itertools.count()
"""Numbers for the sources of this process."""


@dataclass(frozen=True)
class Index:
    """The blocks of a file. A block is the unit of decoding (a chunk, a row group)."""

    blocks: npt.NDArray[np.int64]
    """(n, 3): offset of each block (in bytes, or the number of the row group), length in bytes, and
    number of usable records, at least 1."""
    damaged: int = 0
    """Number of damaged records or blocks, which are left out."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further results of the scan (dialect, columns), as JSON values."""

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int, int]], damaged: int = 0, **details: Any) -> Index:
        """Return an index of ``(offset, length, count)`` blocks; blocks without records are left
        out."""
        rows = [block for block in blocks if block[2]]
        return cls(np.array(rows, dtype=np.int64).reshape(-1, 3), damaged, details)


class Gathered:
    """Gathers adjacent records of a file into blocks.

    Args:
        block_bytes: size after which a block ends.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._blocks: list[tuple[int, int, int]] = []
        self._start = self._end = self._count = 0

    def add(self, start: int, end: int, count: int = 1) -> None:
        """Add the bytes ``start .. end - 1`` with some records. Bytes between the last end and
        ``start`` are left out, which ends a block."""
        if start != self._end or self._end - self._start >= self._block_bytes:
            self._blocks.append((self._start, self._end - self._start, self._count))
            self._start, self._count = start, 0
        self._end, self._count = end, self._count + count

    def index(self, damaged: int = 0, **details: Any) -> Index:
        """Return the index of all blocks; see :class:`Index` for the arguments."""
        last = self._start, self._end - self._start, self._count
        return Index.of([*self._blocks, last], damaged, **details)


class BlockSource(ABC):
    """A :class:`Source` of one file. A format implements :meth:`scan` and :meth:`decode`."""

    kind: ClassVar[str]
    """Name of the format, which names its cached indexes."""
    is_scanned_in_order: ClassVar[bool] = True
    """Whether :meth:`scan` reads the whole file in order."""
    block_bytes: ClassVar[int] = 1 << 20
    """Size of a block in formats that gather records into blocks. CSV in blocks of half this size
    parses at three quarters of the speed, because of the cost of each call of the parser."""
    schema: Any = None
    """``pyarrow.Schema`` of the records; None: the records are ``bytes``."""

    def __init__(self, path: str, *, skip_damaged: bool = False) -> None:
        """Open a file and find its blocks.

        Args:
            path: absolute path or URL.
            skip_damaged: verify all data, leave out damaged records or blocks, and count them.

        Raises:
            DataError: the file cannot be read, or is damaged.
        """
        self.name = path
        self.skip_damaged = skip_damaged
        self.number = next(source_numbers)
        self.is_far = is_url(path)
        index, self.opened_as = self.find_blocks()
        self.prepare(index.details)
        names = [] if self.schema is None else self.schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(path, f"column {twice[0]!r} appears twice")
        self.stamp = self.opened_as.size, self.opened_as.mtime_ns
        self.damaged = index.damaged
        # A column of the file has precedence over a folder of its name.
        named = {} if self.schema is None else partitions(path)
        self._of_folders = {n: value for n, value in named.items() if n not in names}
        self.metadata = Metadata(path)
        if self.schema is not None:
            self.metadata = Metadata.of(
                path, self._with_partitions(self.schema.empty_table()).schema
            )
        self._blocks = index.blocks
        self._ends = np.cumsum(index.blocks[:, 2])
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    @abstractmethod
    def scan(self, file: DataFile) -> Index:
        """Return the index of the open file, in one pass.

        Raises:
            DataError: the file is damaged.
        """

    def prepare(self, details: dict[str, Any]) -> None:  # noqa: B027
        """Set what decoding needs from the details of the index, such as the schema."""

    @abstractmethod
    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """Return all ``count`` records of a block.

        Args:
            offset, length: values of the block in the index.

        Raises:
            DataError: the block is damaged.
        """

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the file; see :func:`~torch_edl.data.sources.data_file.fingerprint`, also
        for errors."""
        return fingerprint(self.name, self.opened_as)

    def read(self, start: int, end: int) -> Records:
        """Return the records ``start .. end - 1``; see :meth:`Source.read`."""
        if not 0 <= start <= end <= self.count:
            raise DataError(
                self.name,
                f"asked for records {start} to {end}, it has {self.count}; if the file changed, "
                "start the job again",
            )
        found: Records = self._with_partitions(self._read_range(start, end))
        return found

    def _with_partitions(self, records: Any) -> Any:
        """Return records with columns for the folders of their file."""
        if self._of_folders:
            import pyarrow as pa  # already imported, since the records are a table

            for name, value in self._of_folders.items():
                of_type = pa.int64() if isinstance(value, int) else pa.string()
                column = pa.repeat(pa.scalar(value, of_type), len(records))
                records = records.append_column(name, column)
        return records

    def _read_range(self, start: int, end: int) -> Records:
        if start == end:
            return [] if self.schema is None else self.schema.empty_table()
        first = int(self._ends.searchsorted(start, side="right"))
        last = int(self._ends.searchsorted(end, side="left"))
        parts, decoded = [], []
        file = None
        with contextlib.ExitStack() as stack:
            for block in range(first, last + 1):
                offset, length, count = self._blocks[block].tolist()
                begin = int(self._ends[block]) - count
                low, high = max(start - begin, 0), min(end - begin, count)
                blocks, key = self.cache_of(length), (self.number, block)
                # Blocks of an object store stay in the cache for the next epoch.
                done = high - low if blocks.releases and not self.is_far else 0
                records = blocks.take(key, done)
                if records is not None:
                    parts.append(cut(records, low, high))
                    continue
                if file is None:
                    file = stack.enter_context(opened(self.name, self.opened_as))
                    self.announce(file, offset, int(self._blocks[last, :2].sum()))
                part, records = self.fetch(file, (offset, length, count), low, high)
                parts.append(part)
                if records is not None:
                    decoded.append((blocks, key, records, count - done))
        # Closing the file has checked that it is unchanged.
        for blocks, key, records, left in decoded:
            blocks.put(key, records, left)
        return concat(parts)

    def fetch(
        self, file: DataFile, block: tuple[int, int, int], start: int, end: int
    ) -> tuple[Records, Any]:
        """Return the records ``start .. end - 1`` of a block of the index, and all its records for
        the cache; None: the cache does not keep the block."""
        offset, _, count = block
        records = self.decode(file, *block)
        if len(records) != count:
            raise DataError(self.name, f"{len(records)} records, the scan saw {count}", offset)
        return cut(records, start, end), records

    def cache_of(self, length: int) -> BlockCache:
        """Return the cache for blocks of ``length`` bytes."""
        return cache

    def announce(self, file: DataFile, start: int, end: int) -> None:
        """Announce that the bytes ``start .. end - 1`` will be read in order."""
        file.will_read(start, end)

    # ---- the cached index ----

    def find_blocks(self) -> tuple[Index, Stamp]:
        """Return the index of the file from the cache, or from a scan if the cache does not match
        the content of the file; and the stamp of the file.

        The cache is a small file in the folder of the data, or in ``edl_home()/cache`` if that
        folder is not writable or the data is behind a URL. A stale, damaged or unreadable cache is
        replaced. An index that leaves out damaged records has its own cache.
        """
        with DataFile(self.name) as file:
            if self.is_scanned_in_order:
                file.will_read(0, file.size)
            if file.size < MIN_CACHED_BYTES:
                return self.scan(file), file.stamp
            about = {"path": self.name, "kind": self.kind, "skip_damaged": self.skip_damaged}
            key = {**about, "version": _INDEX_VERSION, **file.stamp._asdict()}
            places = _places(self.name, f"{self.kind}{'-skip' if self.skip_damaged else ''}")
            found = next(filter(None, (_load(place, key) for place in places)), None)
            index = self.scan(file) if found is None else found
        if found is None:
            any(_save(place, key, index) for place in places)
        return index, file.stamp


def growing(file: DataFile, start: int, size: int, limit: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the bytes from ``start`` on: ``size`` bytes, and double as many each time up to the
    limit; and whether the file ends there."""
    while True:
        block = file.read_at(start, min(size, file.size - start))
        whole = start + len(block) == file.size
        yield block, whole
        if whole or size >= limit:
            return
        size *= 2


def _places(path: str, kind: str) -> list[str]:
    hashed = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    home = str(edl_home() / "cache" / f"{hashed}.{kind}.edl-index")
    if is_url(path):
        return [home]
    folder, name = os.path.split(path)
    return [os.path.join(folder, f".{name}.{kind}.edl-index"), home]


def _load(place: str, key: dict[str, Any]) -> Index | None:
    """Return the index in ``place`` if it is undamaged and has this key; None otherwise."""
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
        return None  # missing or damaged: the data is scanned


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
