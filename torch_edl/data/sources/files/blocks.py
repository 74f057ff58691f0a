"""Files of records, divided into blocks that can be decoded independently.

A format finds the blocks of a file in one scan, and decodes single blocks. This module finds the
blocks of a range, caches blocks with unread records, and returns the records of the range.

All sources of a process share a cache of decoded blocks. A block of a local file is released when
all its records have been read, since the epoch does not need the block again. The next block is
then decoded into the same memory, which avoids the high cost of touching new pages.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Self

import numpy as np

from torch_edl.data.sources.base import concat, cut, is_url
from torch_edl.data.sources.files.index import Index
from torch_edl.data.sources.storage.data_file import DataFile, fingerprint, give_back, take
from torch_edl.errors import DataError
from torch_edl.interfaces import Metadata, Records
from torch_edl.interfaces.source import Stamp

CACHE_BYTES = 128 << 20
"""Maximum size of the cache in bytes per process; the newest block is always kept."""

_BYTES_OVERHEAD = 64  # memory of a ``bytes`` object in a list, without its content

Key = tuple[int, int]
"""Number of the source, and number of the block."""


class BlockCache:
    """A least recently used cache of decoded blocks.

    Attributes:
        bytes: total size of all blocks in bytes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, tuple[Records, int, int]] = OrderedDict()
        self.bytes = 0

    def take(self, key: Key, count: int) -> Records | None:
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

    def put(self, key: Key, records: Records, left: int) -> None:
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
            while self.bytes > CACHE_BYTES and len(self._blocks) > 1:
                _, (_, freed, _) = self._blocks.popitem(last=False)
                self.bytes -= freed


cache = BlockCache()
"""The block cache of this process."""

source_numbers = itertools.count()
"""Numbers for the sources of this process."""


MAX_RECORD_BYTES = 1 << 30
"""Maximum size of a record or chunk in bytes; a larger length field is damaged."""

MAX_BLOCK_RECORDS = 2**31 - 1
"""Maximum number of records in a block; a larger number is damaged. The number is not limited by
the size of the block, since a column of nulls takes no bytes."""


class Reading:
    """The blocks of one call of :meth:`BlockSource.read`, from the cache or newly decoded.

    The file is opened for the first block that is not in the cache. At the end, decoded blocks are
    added to the cache if the file has not changed.
    """

    def __init__(self, source: BlockSource, last: int) -> None:
        self._source = source
        self._last = last
        self._file: DataFile | None = None
        self._decoded: list[tuple[int, Records, int]] = []

    def records(self, block: int, start: int, end: int) -> Records:
        """Return the records ``start .. end - 1``, at least one, of a block of the index."""
        # Blocks of an object store stay in the cache for the next epoch.
        done = 0 if self._source.is_far else end - start
        records = cache.take((self._source.number, block), done)
        if records is None:
            records = self._source.decode_block(self.file(block), block)
            self._decoded.append((block, records, len(records) - done))
        return cut(records, start, end)

    def file(self, block: int) -> DataFile:
        """Return the open file, for reading blocks from ``block`` on."""
        if self._file is None:
            self._file = take(self._source.name, self._source.opened_as)
            self._source.announce(self._file, block, self._last)
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._file is None:
            return
        if error is not None:
            self._file.close()
            return
        give_back(self._file)
        for block, records, left in self._decoded:
            cache.put((self._source.number, block), records, left)


class BlockSource(ABC):
    """A :class:`Source` of one file. A format implements the scan and :meth:`decode`.

    Attributes:
        stamp: size in bytes and modification time in ns of the file when the source was opened.
        number: number of the source in the process.
        opened_as: stamp of the file when the source was opened.
        is_far: True if the file is behind a URL.
    """

    def __init__(self, stamp: Stamp, index: Index, metadata: Metadata) -> None:
        self.name = metadata.path
        self.metadata = metadata
        self.stamp = stamp.size, stamp.mtime_ns
        self.damaged = index.damaged
        self.opened_as = stamp
        self._blocks = index.blocks
        self._ends = np.cumsum(index.blocks[:, 2])
        self.count = int(self._ends[-1]) if len(self._ends) else 0
        self.number = next(source_numbers)
        self.is_far = is_url(self.name)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the file; see
        :func:`~torch_edl.data.sources.storage.data_file.fingerprint`, also for errors."""
        return fingerprint(self.name, self.opened_as)

    def read(self, start: int, end: int) -> Records:
        """Return the records ``start .. end - 1``; see :meth:`Source.read`."""
        if not 0 <= start <= end <= self.count:
            raise DataError(
                self.name,
                f"asked for records {start} to {end}, it has {self.count}; if the file changed, "
                "start the job again",
            )
        if start == end:
            return self.empty()
        first = int(self._ends.searchsorted(start, side="right"))
        last = int(self._ends.searchsorted(end, side="left"))
        parts = []
        with Reading(self, last) as reading:
            for block in range(first, last + 1):
                count = int(self._blocks[block, 2])
                begin = int(self._ends[block]) - count
                low, high = max(start - begin, 0), min(end - begin, count)
                parts.append(self.part(reading, block, low, high))
        return concat(parts)

    def part(self, reading: Reading, block: int, start: int, end: int) -> Records:
        """Return the records ``start .. end - 1``, at least one, of a block of the index."""
        return reading.records(block, start, end)

    def announce(self, file: DataFile, first: int, last: int) -> None:
        """Announce that the blocks ``first .. last`` will be read in order."""
        offset, length, _ = self._blocks[last].tolist()
        file.will_read(int(self._blocks[first, 0]), offset + length)

    def decode_block(self, file: DataFile, block: int) -> Records:
        """Return all records of a block of the index."""
        return self.decode(file, *self._blocks[block].tolist())

    def empty(self) -> Records:
        """Return an empty list or table of the type and schema of this source."""
        return []

    @abstractmethod
    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """Return all ``count`` records of a block.

        Args:
            file: the open file.
            offset, length: values of the block in the index.

        Raises:
            DataError: the block is damaged, or does not hold ``count`` records.
        """
