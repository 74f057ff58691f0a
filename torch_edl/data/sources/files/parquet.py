"""Parquet: read as ``pyarrow.Table``, a row group at a time.

A row group is the least that can be read, so tasks are served best by files whose row groups are
about as long as a task (``pyarrow.parquet.write_table(..., row_group_size=...)``). Larger ones are
decoded in slices, to disk (:mod:`~torch_edl.data.sources.files.sliced`); tasks are read from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from torch_edl.data.sources.files import sliced
from torch_edl.data.sources.files.blocks import MAX_BLOCK_RECORDS
from torch_edl.data.sources.files.index import Index, cached
from torch_edl.data.sources.files.sliced import SlicedSource
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.errors import DataError
from torch_edl.interfaces import Metadata

log = logging.getLogger(__name__)

LARGE_ROW_GROUP_BYTES = 256 << 20
"""Above this, reading a task out of a row group costs more than training on it."""

SLICE_BYTES = 2 << 20
"""What is decoded at once."""

# Of a column of a large row group, read at once: of a file, and of an object in one request.
_READ_BYTES = 64 << 10
_REQUEST_BYTES = 1 << 20

# A damaged footer may claim any length: what honest ones stay below by far.
_THRIFT_STRING_BYTES = 100 << 20
_THRIFT_CONTAINER_ITEMS = 10_000_000


class ParquetSource(SlicedSource):
    """The rows of a Parquet file."""

    @staticmethod
    def begins(head: bytes) -> bool:
        """True if a file of this format begins with these bytes."""
        return head.startswith(b"PAR1")

    def __init__(self, path: str, *, skip_damaged: bool = False) -> None:
        """Opens ``path`` (absolute) and reads its footer.

        Raises:
            DataError: unreadable, or not a whole Parquet file. With ``skip_damaged`` every row
                group is decoded once, and those that cannot be are left out.
        """
        self._footer: Any = None
        self.schema = pa.schema([])

        def scan(file: DataFile) -> Index:
            return self._scan(file, skip_damaged)

        with DataFile(path) as file:
            stamp = file.stamp
            self._read_footer(file)
            index = Index.of([])
            if self._footer is not None:
                # Without decoding, the footer is the index; there is nothing to save by a cache.
                if skip_damaged:
                    index = cached(path, "parquet", True, scan, sequential=False)[0]
                else:
                    index = scan(file)
        super().__init__(stamp, index, Metadata.of(path, self.schema))
        longest = index.blocks[:, 1].max(initial=0)
        if longest > LARGE_ROW_GROUP_BYTES:
            log.warning(
                "%s: row groups of %d MB; each task reads whole ones, so training will wait for "
                "data: write the file with a smaller row_group_size",
                path,
                longest >> 20,
            )

    def announce(self, file: DataFile, first: int, last: int) -> None:
        """Columns are read side by side."""

    def slices(self, file: DataFile, offset: int, length: int, count: int) -> Iterator[Any]:
        """All rows of row group number ``offset``."""
        size = max(1, SLICE_BYTES * count // max(length, 1))
        found = 0
        with _as_data_error(file.path, f"row group {offset}"):
            # One thread: the cores belong to the training step that runs meanwhile.
            reader = self._reader(file, length)
            batches = reader.iter_batches(size, row_groups=[offset], use_threads=False)
            while (batch := next(batches, None)) is not None:
                if batch.schema != self.schema:
                    break
                found += len(batch)
                yield batch
        if found != count:
            raise DataError(file.path, f"row group {offset}: {found} rows, the footer says {count}")

    def _scan(self, file: DataFile, skip_damaged: bool) -> Index:
        blocks = []
        damaged = 0
        for number in range(self._footer.num_row_groups):
            group = self._footer.row_group(number)
            if not 0 <= group.num_rows <= MAX_BLOCK_RECORDS:
                raise DataError(file.path, f"row group {number}: {group.num_rows} rows")
            block = (number, group.total_byte_size, group.num_rows)
            try:
                if skip_damaged:
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
        names = self.schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(file.path, f"column {twice[0]!r} appears twice")

    def _reader(self, file: DataFile, length: int) -> Any:
        """A reader for row groups of that many bytes."""
        if length > sliced.SPILL_ABOVE_BYTES:
            return self._open(file, _READ_BYTES if file.local_path else _REQUEST_BYTES)
        reader = file.reader or self._open(file)
        if file.is_mapped:  # that of an object holds all that it has read
            file.reader = reader
        return reader

    def _open(self, file: DataFile, buffer_bytes: int = 0) -> Any:
        """A reader that reads all columns of a row group, those of an object in one request; or,
        with a buffer, each column by and by."""
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
