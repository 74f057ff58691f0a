"""Tables with blocks that a format decodes in slices; large blocks are decoded to disk."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from torch_edl.data.sources.files.blocks import BlockSource, Reading
from torch_edl.data.sources.files.spill import SpilledRows, Spills
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.data.sources.storage.open_files import opened
from torch_edl.interfaces import Records

log = logging.getLogger(__name__)

SPILL_ABOVE_BYTES = 32 << 20
"""Size of a block in the index above which the block is decoded to disk instead of memory."""

_spills = Spills()


class SlicedSource(BlockSource):
    """A source of tables. A format implements the scan and :meth:`slices`.

    Attributes:
        schema: ``pyarrow.Schema`` of all slices.
    """

    schema: Any

    @abstractmethod
    def slices(self, file: DataFile, offset: int, length: int, count: int) -> Iterator[Any]:
        """Yield all rows of a block of the index, as ``pyarrow.RecordBatch``.

        Raises:
            DataError: the block is damaged, or does not hold ``count`` rows.
        """

    def empty(self) -> Records:
        """Return a table without rows, with the columns of the file."""
        return self.schema.empty_table()

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """Return the rows of a block as a table."""
        return pa.Table.from_batches(self.slices(file, offset, length, count), self.schema)

    def part(self, reading: Reading, block: int, start: int, end: int) -> Records:
        """Return the rows ``start .. end - 1``, at least one, of a block of the index."""
        offset, length, count = self._blocks[block].tolist()
        if length <= SPILL_ABOVE_BYTES:
            return super().part(reading, block, start, end)
        key = (self.number, block)
        rows = _spills.get(key)
        if rows is None:
            with opened(self.name, self.opened_as) as file:
                rows = self._spilled(file, offset, length, count)
                if rows is None:
                    return self._passing_by(file, (offset, length, count), start, end)
            _spills.put(key, rows)
        return rows.read(start, end)

    def _spilled(self, file: DataFile, offset: int, length: int, count: int) -> SpilledRows | None:
        """Decode a block to disk and return its rows; None if the disk is full."""
        try:
            rows = SpilledRows()
            for batch in self.slices(file, offset, length, count):
                rows.append(batch)
            return rows
        except OSError as error:
            log.warning(
                "%s: %d MB are decoded again for each task: no temporary file (%s); set "
                "TMPDIR to a folder with room, or write smaller row groups or batches",
                self.name,
                length >> 20,
                error.strerror or error,
            )
            return None
        finally:
            # Releases about 100 MB of the decoder, which are unused until the next block.
            pa.default_memory_pool().release_unused()

    def _passing_by(
        self, file: DataFile, block: tuple[int, int, int], start: int, end: int
    ) -> Records:
        """Return the rows ``start .. end - 1`` of a block by decoding the whole block."""
        parts, begin = [], 0
        for batch in self.slices(file, *block):
            low, high = max(start - begin, 0), min(end - begin, len(batch))
            if low < high:
                parts.append(batch.slice(low, high - low))
            begin += len(batch)
        return pa.Table.from_batches(parts, self.schema)
