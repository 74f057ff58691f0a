"""Reading ranges of records from files that are made of blocks.

Every format here is a series of blocks that decode by themselves. A format says how to decode
one; this file finds the blocks of a range, keeps the last ones decoded, and cuts the range out.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict

import numpy as np

from torch_edl.data.sources.base import Metadata, Records, concat
from torch_edl.data.sources.files import DataFile, Stamp
from torch_edl.data.sources.index import Index
from torch_edl.errors import DataError

CACHE_BYTES = 128 << 20
"""Decoded blocks kept per process, over all sources; the newest block is always kept."""

MAX_RECORD_BYTES = 1 << 30
"""A length field above this is damage: no record, chunk or row is that long."""

_BYTES_OVERHEAD = 64
"""A ``bytes`` object in a list costs about this much beside its content."""


class _BlockCache:
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


_cache = _BlockCache()
_numbers = itertools.count()


class BlockSource(ABC):
    """A :class:`Source` over one file; a format adds its scan and :meth:`decode`."""

    def __init__(self, path: str, stamp: Stamp, index: Index, metadata: Metadata) -> None:
        self._path = path
        self._stamp = stamp
        self._index = index
        self._metadata = metadata
        self._number = next(_numbers)
        self._ends = np.cumsum(index.counts)

    @property
    def name(self) -> str:
        """Absolute path of the file."""
        return self._path

    @property
    def stamp(self) -> tuple[int, int]:
        """Size in bytes, and time of the last change in ns, of the file when it was opened."""
        return self._stamp.size, self._stamp.mtime_ns

    @property
    def count(self) -> int:
        """Usable records."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def damaged(self) -> int:
        """What ``skip_damaged`` left out."""
        return self._index.damaged

    @property
    def metadata(self) -> Metadata:
        """Path, and for tables the names and types of the columns."""
        return self._metadata

    def read(self, start: int, end: int) -> Records:
        """The records ``start .. end - 1``. See :meth:`Source.read`."""
        if not 0 <= start <= end <= self.count:
            raise DataError(
                self._path,
                f"asked for records {start} to {end}, it has {self.count}; if the file changed, "
                "start the job again",
            )
        if start == end:
            return self.empty()
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, end, side="left"))
        parts = []
        for block in range(first, last + 1):
            records = self._block(block)
            begin = int(self._ends[block] - self._index.counts[block])
            low, high = max(start - begin, 0), min(end - begin, len(records))
            if isinstance(records, list):
                parts.append(records[low:high])
            else:
                parts.append(records.slice(low, high - low))
        return concat(parts)

    def _block(self, block: int) -> Records:
        key = (self._number, block)
        records = _cache.get(key)
        if records is None:
            offset, length, count = (
                int(column[block])
                for column in (self._index.offsets, self._index.lengths, self._index.counts)
            )
            with DataFile(self._path, expect=self._stamp) as file:
                records = self.decode(file, offset, length, count)
            _cache.put(key, records)
        return records

    @abstractmethod
    def empty(self) -> Records:
        """No records, of the type and schema of this source."""

    @abstractmethod
    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """All ``count`` records of the block that the index describes.

        Raises:
            DataError: the block is damaged, or does not hold ``count`` records.
        """
