"""Parquet: read as ``pyarrow.Table``, a row group at a time.

A row group is the least that can be read, so tasks are served best by files whose row groups are
about as long as a task (``pyarrow.parquet.write_table(..., row_group_size=...)``). Larger ones are
decoded in slices, to disk (:mod:`~torch_edl.data.sources.spill`), and tasks are read from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from torch_edl.data.sources.base import Metadata, Records
from torch_edl.data.sources.blocks import BlockSource, DataFile, Index, cached
from torch_edl.data.sources.spill import SpilledRows, Spills
from torch_edl.errors import DataError

log = logging.getLogger(__name__)

LARGE_ROW_GROUP_BYTES = 256 << 20
"""Above this, reading a task out of a row group costs more than training on it."""

SPILL_ABOVE_BYTES = 32 << 20
"""Row groups that are larger, as the footer has it, are decoded to disk rather than to memory."""

SLICE_BYTES = 2 << 20
"""What is decoded at once."""

# Pages are read one by one: by default, pyarrow reads all columns of a row group at once.
_READ_BYTES = 64 << 10

# A damaged footer may claim any length: what honest ones stay below by far.
_THRIFT_STRING_BYTES = 100 << 20
_THRIFT_CONTAINER_ITEMS = 10_000_000

_spills = Spills()


class ParquetSource(BlockSource):
    """The rows of a Parquet file."""

    def __init__(self, path: str, *, skip_damaged: bool = False) -> None:
        """Opens ``path`` (absolute) and reads its footer.

        Raises:
            DataError: unreadable, or not a whole Parquet file. With ``skip_damaged`` every row
                group is decoded once, and those that cannot be are left out.
        """
        self._footer: Any = None
        self._schema: Any = pa.schema([])

        def scan(file: DataFile) -> Index:
            return self._scan(file, skip_damaged)

        with DataFile(path) as file:
            stamp = file.stamp
            self._read_footer(file)
            index = Index.of([])
            if self._footer is not None:
                # Without decoding, the footer is the index; there is nothing to save by a cache.
                index = cached(path, "parquet", True, scan)[0] if skip_damaged else scan(file)
        super().__init__(stamp, index, Metadata.of(path, self._schema))
        longest = index.blocks[:, 1].max(initial=0)
        if longest > LARGE_ROW_GROUP_BYTES:
            log.warning(
                "%s: row groups of %d MB; each task reads whole ones, so training will wait for "
                "data: write the file with a smaller row_group_size",
                path,
                longest >> 20,
            )

    def empty(self) -> Records:
        """A table of no rows with the columns of the file."""
        return self._schema.empty_table()

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """The rows of row group number ``offset``."""
        return pa.Table.from_batches(self._slices(file.path, offset, length, count), self._schema)

    def part(self, block: int, start: int, end: int) -> Records:
        """The rows ``start .. end - 1``, at least one, of a row group of the index."""
        group, length, count = self._blocks[block].tolist()
        if length <= SPILL_ABOVE_BYTES:
            return super().part(block, start, end)
        key = (self._number, block)
        rows = _spills.get(key)
        if rows is None:
            with DataFile(self.name, expect=self._opened):
                rows = self._spilled(group, length, count)
                if rows is None:
                    return self._passing_by(group, length, count, start, end)
            _spills.put(key, rows)
        return rows.read(start, end)

    def _spilled(self, group: int, length: int, count: int) -> SpilledRows | None:
        """A row group, decoded to disk; None: there is no room."""
        try:
            rows = SpilledRows()
            for batch in self._slices(self.name, group, length, count):
                rows.append(batch)
            return rows
        except OSError as error:
            log.warning(
                "%s: row group %d is decoded again for each task: no temporary file (%s); set "
                "TMPDIR to a folder with room, or write the file with a smaller row_group_size",
                self.name,
                group,
                error.strerror or error,
            )
            return None
        finally:
            # The decoder needs a hundred megabytes that are of no use until the next row group.
            pa.default_memory_pool().release_unused()

    def _passing_by(self, group: int, length: int, count: int, start: int, end: int) -> Records:
        """The rows ``start .. end - 1`` of a row group, from one pass over all of it."""
        parts, begin = [], 0
        for batch in self._slices(self.name, group, length, count):
            low, high = max(start - begin, 0), min(end - begin, len(batch))
            if low < high:
                parts.append(batch.slice(low, high - low))
            begin += len(batch)
        return pa.Table.from_batches(parts, self._schema)

    def _slices(self, path: str, group: int, length: int, count: int) -> Iterator[Any]:
        """All rows of a row group, as record batches.

        Raises:
            DataError: damaged, or not ``count`` rows.
        """
        size = max(1, SLICE_BYTES * count // max(length, 1))
        found = 0
        with _as_data_error(path, f"row group {group}"), self._open(path) as opened:
            # One thread: the cores belong to the training step that runs meanwhile.
            batches = opened.iter_batches(size, row_groups=[group], use_threads=False)
            while (batch := next(batches, None)) is not None:
                if batch.schema != self._schema:
                    break
                found += len(batch)
                yield batch
        if found != count:
            raise DataError(path, f"row group {group}: {found} rows, the footer says {count}")

    def _scan(self, file: DataFile, skip_damaged: bool) -> Index:
        blocks = []
        damaged = 0
        for number in range(self._footer.num_row_groups):
            group = self._footer.row_group(number)
            if group.num_rows < 0:
                raise DataError(file.path, f"row group {number}: {group.num_rows} rows")
            block = (number, group.total_byte_size, group.num_rows)
            try:
                if skip_damaged:
                    for _ in self._slices(file.path, *block):
                        pass
            except DataError as error:
                log.warning("left out: %s", error)
                damaged += group.num_rows
                continue
            blocks.append(block)
        return Index.of(blocks, damaged)

    def _read_footer(self, file: DataFile) -> None:
        if file.size == 0:
            return
        with _as_data_error(file.path, "not a whole Parquet file"), self._open(file.path) as opened:
            self._footer = opened.metadata
            self._schema = opened.schema_arrow
        names = self._schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(file.path, f"column {twice[0]!r} appears twice")

    def _open(self, path: str) -> Any:
        return parquet.ParquetFile(
            path,
            metadata=self._footer,
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=_READ_BYTES,
            thrift_string_size_limit=_THRIFT_STRING_BYTES,
            thrift_container_size_limit=_THRIFT_CONTAINER_ITEMS,
        )


@contextmanager
def _as_data_error(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataError(path, f"{what}: {error}") from error
