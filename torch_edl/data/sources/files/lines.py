"""Text of one record per row, read as ``pyarrow.Table`` with the same types everywhere.

Opening a file finds its rows and counts them; a parser runs when records are read. A block is about
a megabyte of whole rows. The types of the columns are those of a sample: all of a file up to
``SAMPLE_BYTES``, or as many blocks of a larger file, from its first to its last. A record that does
not have these types raises DataError when it is read, with its line. With ``skip_damaged``, all
records are parsed while the file is opened: the types are those of all records, and records that
cannot be parsed are left out of the blocks.
"""

from __future__ import annotations

import base64
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import BlockSource, Gathered, Index, growing
from torch_edl.data.sources.files.rows import Rows, find_rows
from torch_edl.errors import DataError
from torch_edl.interfaces import Records

log = logging.getLogger(__name__)

SAMPLE_BYTES = 8 << 20
"""Size of the text in which the types of the columns are found."""

MAX_ROW_BYTES = 64 << 20
"""Maximum size of a row; a longer row probably has a quote that is not closed."""

_FIX = (
    "correct the record, or use --skip-damaged, which parses all records before training: the "
    "columns get types that fit all records, and malformed ones are left out"
)
_PIECE = 4 << 20
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


class MalformedError(Exception):
    """Text that is not a record, or a record that does not have the types of the columns."""


class MixedTypesError(MalformedError):
    """Records that can be parsed, but not with common types."""


class LineSource(BlockSource):
    """The base of text formats; a subclass parses whole rows."""

    delimiter = b""
    """Delimiter of CSV, whose quotes may hold newlines; empty: each newline ends a row."""
    comment = b""
    """Character with which comments begin; empty: there are no comments."""

    @abstractmethod
    def parse(self, text: bytes | memoryview, schema: Any) -> Any:
        """Return the table of whole rows, which hold a record at least.

        Args:
            schema: ``pyarrow.Schema`` of the table; None: the types are inferred from the text.

        Raises:
            MalformedError: a record is malformed. For the text of a single record, the message
                tells what is wrong.
        """

    @abstractmethod
    def merge(self, before: Any, found: Any) -> Any:
        """Return the schema to which records of both schemas can be converted; raise
        MixedTypesError if there is none."""

    def header(self, file: DataFile) -> tuple[int, Any]:
        """Return the offset of the first record, and the schema before any record."""
        return 0, pa.schema([])

    def finish(self, schema: Any) -> Any:
        """Return the schema after the last record that was parsed; raise MixedTypesError if the
        file cannot be read with it."""
        return schema

    def prepare(self, details: dict[str, Any]) -> None:
        serialized = base64.b64decode(details["schema"])
        self.schema = pa.ipc.read_schema(pa.py_buffer(serialized))

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        text = file.view_at(offset, length)
        try:
            return self._parse(text, self.schema, count)
        except MalformedError as error:
            rows = self.rows(text, True)
            self._sound(file, offset, text, rows, self._check, skip=False)
            raise DataError(file.path, str(error), offset) from error

    def _check(self, text: bytes | memoryview, count: int) -> None:
        try:
            self._parse(text, self.schema, count)
        except MalformedError as error:
            raise MalformedError(f"{error}; {_FIX}") from error

    def _parse(self, text: bytes | memoryview, schema: Any, count: int) -> Any:
        rows = self.parse(text, schema)
        if len(rows) != count:
            raise MalformedError(f"{len(rows)} records in {count} rows; write one per row")
        return rows

    def rows(self, text: bytes | memoryview, whole: bool) -> Rows:
        """Find the whole rows of a text; see :func:`find_rows`."""
        return find_rows(text, whole, delimiter=self.delimiter, comment=self.comment)

    def scan(self, file: DataFile) -> Index:
        if file.read_at(0, min(4, file.size)).startswith(_COMPRESSED):
            raise DataError(file.path, "is compressed and cannot be read by index; unpack it first")
        start, schema = self.header(file)
        damaged = 0

        def add(text: bytes | memoryview, count: int) -> None:
            nonlocal schema
            found = self._parse(text, None, count).schema
            schema = self.merge(schema, found)

        gathered = Gathered(self.block_bytes // 2)
        parses_all = self.skip_damaged or file.size <= SAMPLE_BYTES
        for offset, text, rows in self._row_blocks(file, start):
            if rows is None:
                damaged += 1
                break
            parts = [(0, len(rows))]
            if parses_all:
                parts = self._sound(file, offset, text, rows, add, skip=self.skip_damaged)
            for first, last in parts:
                begin, end = rows.span(first, last)
                gathered.add(offset + begin, offset + end, last - first)
            damaged += len(rows) - sum(last - first for first, last in parts)
        index = gathered.index(damaged)
        if not parses_all:
            for offset, length, _ in _spread(index.blocks.tolist(), self.block_bytes):
                text = file.read_at(offset, length)
                self._sound(file, offset, text, self.rows(text, True), add, skip=False)
            schema = pa.schema([(field.name, _not_null(field.type)) for field in schema])
        try:
            schema = self.finish(schema)
        except MixedTypesError as error:
            raise DataError(file.path, str(error)) from error
        if len(index.blocks) and not schema.names:
            raise DataError(file.path, "no record has a field", start)
        serialized = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return Index(index.blocks, damaged, {"schema": serialized})

    def _row_blocks(
        self, file: DataFile, start: int
    ) -> Iterator[tuple[int, bytes | memoryview, Rows | None]]:
        """Yield offset, text and rows of each block of whole rows; None instead of the rows for a
        damaged end of the file, which is left out."""
        while start < file.size:
            for text, whole in growing(file, start, self.block_bytes, MAX_ROW_BYTES):
                rows = self.rows(text, whole)
                if rows.end:
                    break
            if rows.end:
                yield start, text[: rows.end], rows
                start += rows.end
                continue
            # No row ends: a quote is not closed, or the row is too long.
            if rows.unclosed is None:
                error = DataError(file.path, f"a row longer than {MAX_ROW_BYTES} bytes", start)
            else:
                at = start + rows.unclosed
                error = DataError(file.path, "a quoted field is not closed", at)
            if not self.skip_damaged:
                raise error
            log.warning("left out, with what follows: %s", error)
            yield start, b"", None
            return

    def _sound(
        self,
        file: DataFile,
        offset: int,
        text: bytes | memoryview,
        rows: Rows,
        check: Callable[[bytes | memoryview, int], None],
        *,
        skip: bool,
    ) -> list[tuple[int, int]]:
        """Return the ranges of records that pass a check: those of the whole text, or else of
        smaller and smaller halves of it.

        Args:
            check: function of whole rows and their number of records.
            skip: leave out single records that are malformed, instead of raising DataError.
        """
        found: list[tuple[int, int]] = []
        open_ranges = [(0, len(rows))] if len(rows) else []
        while open_ranges:
            first, last = open_ranges.pop()
            begin, end = rows.span(first, last)
            try:
                check(text[begin:end], last - first)
            except MalformedError as error:
                if last - first > 1:
                    middle = (first + last) // 2
                    open_ranges += [(middle, last), (first, middle)]
                    continue
                place = offset + int(rows.starts[first])
                if not skip or isinstance(error, MixedTypesError):
                    raise self._named(file, place, error) from error
                log.debug("left out: %s at byte %d: %s", file.path, place, error)
                continue
            found.append((first, last))
        return found

    def _named(self, file: DataFile, offset: int, error: MalformedError) -> DataError:
        """Return the error of the record at ``offset``, with its line in a local file."""
        if self.is_far:  # to count the lines would transfer all of the object before the record
            return DataError(file.path, str(error), offset)
        lines = 1
        for start in range(0, offset, _PIECE):
            lines += file.read_at(start, min(_PIECE, offset - start)).count(b"\n")
        return DataError(file.path, f"line {lines:,}: {error}", offset)


def _spread(blocks: Sequence[list[int]], block_bytes: int) -> list[list[int]]:
    """Return blocks of about ``SAMPLE_BYTES`` in all, at equal distances from the first block to
    the last."""
    many = max(2, SAMPLE_BYTES // block_bytes)
    places = np.linspace(0, len(blocks) - 1, min(many, len(blocks)))
    return [blocks[int(place)] for place in places]


def _not_null(kind: Any) -> Any:
    """Return the type with texts for values that no record of a sample has."""
    if types.is_null(kind):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(_not_null(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _not_null(field.type)) for field in kind])
    return kind
