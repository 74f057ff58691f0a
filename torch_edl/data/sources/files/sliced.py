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
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from torch_edl.data.sources.files.blocks import BlockSource, Reading
from torch_edl.data.sources.storage.data_file import DataFile, opened
from torch_edl.interfaces import Records

SPILL_BYTES = 1 << 30
"""Maximum size on disk per process, over all sources; the newest row group is always kept."""


class SpilledRows:
    """The rows of one row group, in an unnamed file that is removed with this object.

    One thread appends all rows; afterwards any number of threads may read.

    Attributes:
        bytes: size of the file in bytes.

    Raises:
        OSError: the disk is full, in the constructor and in :meth:`append`.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="torch-edl-", buffering=0)  # noqa: SIM115
        self._ends: list[int] = []
        self._places: list[tuple[int, int]] = []
        self.bytes = 0

    def append(self, batch: Any) -> None:
        """Append a ``pyarrow.RecordBatch``."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        rest = memoryview(sink.getvalue())
        self._places.append((self.bytes, len(rest)))
        self._ends.append((self._ends[-1] if self._ends else 0) + len(batch))
        self.bytes += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]

    def read(self, start: int, end: int) -> Any:
        """Return the rows ``start .. end - 1``, at least one, as a ``pyarrow.Table``."""
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, end, side="left"))
        rows = pa.concat_tables([self._batch(number) for number in range(first, last + 1)])
        return rows.slice(start - (self._ends[first - 1] if first else 0), end - start)

    def _batch(self, number: int) -> Any:
        offset, left = self._places[number]
        parts = []
        while left:
            parts.append(os.pread(self._file.fileno(), left, offset))
            if not parts[-1]:
                raise OSError(f"a temporary file in {tempfile.gettempdir()} was cut short")
            offset, left = offset + len(parts[-1]), left - len(parts[-1])
        return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all()


class Spills:
    """A least recently used cache of row groups on disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[Hashable, SpilledRows] = OrderedDict()

    def get(self, key: Hashable) -> SpilledRows | None:
        """Return the rows of a row group; None: not on disk."""
        with self._lock:
            found = self._rows.get(key)
            if found is not None:
                self._rows.move_to_end(key)
            return found

    def put(self, key: Hashable, rows: SpilledRows) -> None:
        """Add rows, and release old row groups above the limit. A file is removed when its last
        reader has finished."""
        with self._lock:
            self._rows.setdefault(key, rows)  # two threads may have decoded them
            while len(self._rows) > 1 and sum(r.bytes for r in self._rows.values()) > SPILL_BYTES:
                self._rows.popitem(last=False)


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
