"""Tables with blocks that a format decodes in slices; large blocks are decoded to disk.

A row group or record batch can only be decoded from its start, and tasks are read in any order, so
large ones are decoded once, to disk. In memory, a row group of the default size (a million rows)
would take hundreds of megabytes in each worker. The files are unnamed files in the folder of
temporary files (``TMPDIR``), which are removed when the process ends.
"""

from __future__ import annotations

import logging
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import BlockCache, BlockSource
from torch_edl.interfaces import Records

log = logging.getLogger(__name__)

SPILL_ABOVE_BYTES = 32 << 20
"""Size of a block in the index above which the block is decoded to disk instead of memory."""

SPILL_BYTES = 1 << 30
"""Maximum size of the decoded blocks on disk, per process."""


class SpilledRows:
    """The rows of one block, in an unnamed file that is removed with this object.

    One thread appends all rows; afterwards any number of threads may read.

    Raises:
        OSError: the disk is full, in the constructor and in :meth:`append`.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="torch-edl-", buffering=0)  # noqa: SIM115
        self._ends: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._bytes = 0

    def append(self, batch: Any) -> None:
        """Append a ``pyarrow.RecordBatch``."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        rest = memoryview(sink.getvalue())
        self._places.append((self._bytes, len(rest)))
        self._ends.append((self._ends[-1] if self._ends else 0) + len(batch))
        self._bytes += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]

    def get_total_buffer_size(self) -> int:
        """Return the size of the file in bytes, like the method of a table."""
        return self._bytes

    def slice(self, start: int, length: int) -> Any:
        """Return ``length`` rows from ``start`` on, at least one, as a ``pyarrow.Table``."""
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, start + length, side="left"))
        rows = pa.concat_tables([self._batch(number) for number in range(first, last + 1)])
        return rows.slice(start - (self._ends[first - 1] if first else 0), length)

    def _batch(self, number: int) -> Any:
        offset, left = self._places[number]
        parts = []
        while left:
            parts.append(os.pread(self._file.fileno(), left, offset))
            if not parts[-1]:
                raise OSError(f"a temporary file in {tempfile.gettempdir()} was cut short")
            offset, left = offset + len(parts[-1]), left - len(parts[-1])
        return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all()


_spills = BlockCache(SPILL_BYTES, releases=False)
"""The rows on disk of this process. A file is removed when its last reader has finished."""


class SlicedSource(BlockSource):
    """A source of tables. A format implements the scan and :meth:`slices`."""

    @abstractmethod
    def slices(self, file: DataFile, offset: int, length: int, count: int) -> Iterator[Any]:
        """Yield all rows of a block of the index, as ``pyarrow.RecordBatch``.

        Raises:
            DataError: the block is damaged, or does not hold ``count`` rows.
        """

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        return pa.Table.from_batches(self.slices(file, offset, length, count), self.schema)

    def cache_of(self, length: int) -> BlockCache:
        return super().cache_of(length) if length <= SPILL_ABOVE_BYTES else _spills

    def fetch(
        self, file: DataFile, block: tuple[int, int, int], start: int, end: int
    ) -> tuple[Records, Any]:
        length = block[1]
        if length <= SPILL_ABOVE_BYTES:
            return super().fetch(file, block, start, end)
        try:
            rows = SpilledRows()
            for batch in self.slices(file, *block):
                rows.append(batch)
            return rows.slice(start, end - start), rows
        except OSError as error:
            log.warning(
                "%s: %d MB are decoded again for each task: no temporary file (%s); set "
                "TMPDIR to a folder with room, or write smaller row groups or batches",
                self.name,
                length >> 20,
                error.strerror or error,
            )
        finally:
            # Releases about 100 MB of the decoder, which are unused until the next block.
            pa.default_memory_pool().release_unused()
        parts, begin = [], 0
        for batch in self.slices(file, *block):
            low, high = max(start - begin, 0), min(end - begin, len(batch))
            if low < high:
                parts.append(batch.slice(low, high - low))
            begin += len(batch)
        return pa.Table.from_batches(parts, self.schema), None
