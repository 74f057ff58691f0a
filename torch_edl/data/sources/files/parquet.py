"""Parquet, read as ``pyarrow.Table``, one row group at a time.

A row group is the smallest unit that can be read. Row groups should therefore be about as long as a
task (``pyarrow.parquet.write_table(..., row_group_size=...)``). Larger row groups are decoded in
slices to disk (:mod:`~torch_edl.data.sources.files.sliced`), and tasks are read from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files import sliced
from torch_edl.data.sources.files.blocks import MAX_BLOCK_RECORDS, Index
from torch_edl.data.sources.files.sliced import SlicedSource
from torch_edl.errors import DataError
from torch_edl.interfaces.source import Stamp

log = logging.getLogger(__name__)

LARGE_ROW_GROUP_BYTES = 256 << 20
"""Size of a row group above which a warning is logged, since reading a task from it takes longer
than training on the task."""

SLICE_BYTES = 2 << 20
"""Size of a slice that is decoded at once."""

# Bytes per read of a column of a large row group, from a file, and per request to a store.
_READ_BYTES = 64 << 10
_REQUEST_BYTES = 1 << 20

# Limits for lengths in a footer, which may be damaged; valid footers are far below.
_THRIFT_STRING_BYTES = 100 << 20
_THRIFT_CONTAINER_ITEMS = 10_000_000


class ParquetSource(SlicedSource):
    """The rows of a Parquet file. With ``skip_damaged``, damaged row groups are left out."""

    kind = "parquet"
    is_scanned_in_order = False
    schema = pa.schema([])
    _footer: Any = None

    def find_blocks(self) -> tuple[Index, Stamp]:
        with DataFile(self.name) as file:
            self._read_footer(file)
            # Without decoding, the index follows from the footer and needs no cache.
            decodes = self.skip_damaged and self._footer is not None
            index = super().find_blocks()[0] if decodes else self.scan(file)
        longest = index.blocks[:, 1].max(initial=0)
        if longest > LARGE_ROW_GROUP_BYTES:
            log.warning(
                "%s: row groups of %d MB; each task reads whole ones, so training will wait for "
                "data: write the file with a smaller row_group_size",
                self.name,
                longest >> 20,
            )
        return index, file.stamp

    def announce(self, file: DataFile, start: int, end: int) -> None:
        """Do nothing: the columns of a row group are read in parallel, not in order."""

    def slices(self, file: DataFile, offset: int, length: int, count: int) -> Iterator[Any]:
        # ``offset`` is the number of the row group.
        size = max(1, SLICE_BYTES * count // max(length, 1))
        found = 0
        with _as_data_error(file.path, f"row group {offset}"):
            # One thread, so that the other cores are left to the training step.
            reader = self._reader(file, length)
            batches = reader.iter_batches(size, row_groups=[offset], use_threads=False)
            while (batch := next(batches, None)) is not None:
                if batch.schema != self.schema:
                    break
                found += len(batch)
                yield batch
        if found != count:
            raise DataError(file.path, f"row group {offset}: {found} rows, the footer says {count}")

    def scan(self, file: DataFile) -> Index:
        blocks = []
        damaged = 0
        for number in range(self._footer.num_row_groups if self._footer is not None else 0):
            group = self._footer.row_group(number)
            if not 0 <= group.num_rows <= MAX_BLOCK_RECORDS:
                raise DataError(file.path, f"row group {number}: {group.num_rows} rows")
            block = (number, group.total_byte_size, group.num_rows)
            try:
                if self.skip_damaged:
                    for _ in self.slices(file, *block):
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
        with _as_data_error(file.path, "not a whole Parquet file"), self._open(file) as opened:
            self._footer = opened.metadata
            self.schema = opened.schema_arrow

    def _reader(self, file: DataFile, length: int) -> Any:
        if length > sliced.SPILL_ABOVE_BYTES:
            return self._open(file, _READ_BYTES if file.local_path else _REQUEST_BYTES)
        reader = file.reader or self._open(file)
        if file.local_path:  # the reader of an object keeps all bytes that it has read
            file.reader = reader
        return reader

    def _open(self, file: DataFile, buffer_bytes: int = 0) -> Any:
        """Open a reader that reads all columns of a row group at once, from an object in one
        request; with ``buffer_bytes``, each column is read in parts of this size."""
        path = file.local_path
        return parquet.ParquetFile(
            path or pa.PythonFile(file.stream(), "r"),
            metadata=self._footer,
            page_checksum_verification=True,
            pre_buffer=path is None and not buffer_bytes,
            buffer_size=buffer_bytes,
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
