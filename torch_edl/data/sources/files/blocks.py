"""Files of records, which are series of blocks that decode by themselves.

A format finds the blocks of a file in one scan, and decodes one; this module finds those of a
range, keeps the ones of which more will be read, and cuts the range out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import numpy as np

from torch_edl.data.sources.base import Stamp, concat, cut
from torch_edl.data.sources.block_cache import cache, source_numbers
from torch_edl.data.sources.files.index import Index
from torch_edl.data.sources.storage import objects
from torch_edl.data.sources.storage.data_file import DataFile, fingerprint
from torch_edl.data.sources.storage.open_files import give_back, take
from torch_edl.errors import DataError
from torch_edl.interfaces import Metadata, Records

MAX_RECORD_BYTES = 1 << 30
"""A length field above this is damage: no record, chunk or row is that long."""

MAX_BLOCK_RECORDS = 2**31 - 1
"""A count of records above this is damage: a column of nulls has no bytes that would bound it."""


class Reading:
    """The blocks of one call of :meth:`BlockSource.read`: from memory, or decoded.

    The file is opened for the first block that is not in memory. Decoded blocks are kept when the
    file was found to be the same at the end.
    """

    def __init__(self, source: BlockSource, last: int) -> None:
        self._source = source
        self._last = last
        self._file: DataFile | None = None
        self._decoded: list[tuple[int, Records, int]] = []

    def records(self, block: int, start: int, end: int) -> Records:
        """The records ``start .. end - 1``, at least one, of a block of the index."""
        # What came over a network is worth its memory in the next epoch, too.
        done = 0 if self._source.is_far else end - start
        records = cache.take((self._source.number, block), done)
        if records is None:
            records = self._source.decode_block(self.file(block), block)
            self._decoded.append((block, records, len(records) - done))
        return cut(records, start, end)

    def file(self, block: int) -> DataFile:
        """The file, for blocks from this one on."""
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
    """A :class:`Source` over one file; a format adds its scan and :meth:`decode`.

    Attributes:
        stamp: size in bytes, and time of the last change in ns, of the file when it was opened.
        number: tells it from all others of the process.
        opened_as: what the file was when the source was opened.
        is_far: the file is an object of a store.
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
        self.is_far = objects.is_url(self.name)

    @property
    def fingerprint(self) -> str:
        """See :func:`~torch_edl.data.sources.storage.data_file.fingerprint`, also for errors."""
        return fingerprint(self.name, self.opened_as)

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
        """The records ``start .. end - 1``, at least one, of a block of the index."""
        return reading.records(block, start, end)

    def announce(self, file: DataFile, first: int, last: int) -> None:
        """These blocks will be decoded in order."""
        offset, length, _ = self._blocks[last].tolist()
        file.will_read(int(self._blocks[first, 0]), offset + length)

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
