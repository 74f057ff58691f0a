"""Files of records, which are series of blocks that decode by themselves.

A format finds the blocks of a file in one scan, and decodes one; this module caches the index of
the blocks, finds those of a range, keeps the last ones decoded, and cuts the range out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from torch_edl.data.sources.base import Metadata, Records, Stamp, concat, cut
from torch_edl.data.sources.storage import objects
from torch_edl.data.sources.storage.data_file import DataFile
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
    path: str,
    kind: str,
    skip_damaged: bool,
    scan: Callable[[DataFile], Index],
    *,
    sequential: bool = True,
) -> tuple[Index, Stamp]:
    """The index of ``path``: from the cache if it is of this very content, else by ``scan``.

    The cache is a small file beside the data, or under ``edl_home()/cache`` where that folder is
    not writable or the data is behind a URL. One that is stale, damaged or unreadable is made anew.

    Args:
        path: absolute path or URL of the data file.
        kind: format of the file; each has its own cache, and so has ``skip_damaged``.
        skip_damaged: whether ``scan`` leaves damage out.
        scan: makes the index of the opened file in one pass.
        sequential: that pass reads the file from its start to its end.

    Raises:
        DataError: the file cannot be read, or ``scan`` found damage.
    """
    with DataFile(path) as file:
        if sequential:
            file.will_read(0, file.size)
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


def _places(path: str, kind: str) -> list[str]:
    hashed = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    home = str(edl_home() / "cache" / f"{hashed}.{kind}.edl-index")
    if objects.is_url(path):
        return [home]
    folder, name = os.path.split(path)
    return [os.path.join(folder, f".{name}.{kind}.edl-index"), home]


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


class Reading:
    """The blocks of one call of :meth:`BlockSource.read`: from memory, or decoded.

    The file is opened for the first block that is not in memory. Decoded blocks are kept when the
    file was found to be the same at the end.
    """

    def __init__(self, source: BlockSource, last: int) -> None:
        self._source = source
        self._last = last
        self._file: DataFile | None = None
        self._decoded: dict[tuple[int, int], Records] = {}

    def block(self, number: int) -> Records:
        """All records of a block of the index."""
        key = (self._source.number, number)
        records = cache.get(key)
        if records is None:
            if self._file is None:
                self._file = self._source.reopened()
                self._source.announce(self._file, number, self._last)
            records = self._source.decode_block(self._file, number)
            self._decoded[key] = records
        return records

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is None:
            return
        self._file.__exit__(*error)
        for key, records in self._decoded.items():
            cache.put(key, records)


class BlockSource(ABC):
    """A :class:`Source` over one file; a format adds its scan and :meth:`decode`.

    Attributes:
        stamp: size in bytes, and time of the last change in ns, of the file when it was opened.
        number: tells it from all others of the process.
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
        self.number = next(source_numbers)

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
        with Reading(self, last) as reading:
            for block in range(first, last + 1):
                count = int(self._blocks[block, 2])
                begin = int(self._ends[block]) - count
                low, high = max(start - begin, 0), min(end - begin, count)
                parts.append(self.part(reading, block, low, high))
        return concat(parts)

    def part(self, reading: Reading, block: int, start: int, end: int) -> Records:
        """The records ``start .. end - 1``, at least one, of a block of the index."""
        return cut(reading.block(block), start, end)

    def announce(self, file: DataFile, first: int, last: int) -> None:
        """These blocks will be decoded in order."""
        offset, length, _ = self._blocks[last].tolist()
        file.will_read(int(self._blocks[first, 0]), offset + length)

    def reopened(self) -> DataFile:
        """The file, for a ``with`` block.

        Raises:
            DataError: it is another one than when it was opened; so does the end of the block.
        """
        return DataFile(self.name, expect=self._opened)

    def decode_block(self, file: DataFile, block: int) -> Records:
        """All records of a block of the index."""
        return self.decode(file, *self._blocks[block].tolist())

    def empty(self) -> Records:
        """No records, of the type and schema of this source."""
        return []

    @abstractmethod
    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """All ``count`` records of the block that the index describes.

        Raises:
            DataError: the block is damaged, or does not hold ``count`` records.
        """
