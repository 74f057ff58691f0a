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
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import BlockSource, Index, growing
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
        left_out = np.frombuffer(base64.b64decode(details["left_out"]), dtype="<i8")
        self._left_out = left_out.reshape(-1, 2)

    def malformed(self, text: bytes | memoryview, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return True for each record that is seen to be malformed without parsing it."""
        return np.zeros(len(rows), dtype=bool)

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        text = file.view_at(offset, length)
        first, last = np.searchsorted(self._left_out[:, 0], (offset, offset + length))
        places = self._left_out[first:last] - offset
        whole: bytes | memoryview = text
        if len(places):
            ends = zip([0, *places[:, 1].tolist()], [*places[:, 0].tolist(), length], strict=True)
            whole = b"".join(text[start:end] for start, end in ends)
        try:
            return self._parse(whole, self.schema, count)
        except MalformedError as error:
            if not len(places):
                self._sound(file, offset, text, self.rows(text, True), self._check)
            raise DataError(file.path, str(error), offset) from error

    def _check(self, text: bytes | memoryview, count: int) -> None:
        try:
            self._parse(text, self.schema, count)
        except MalformedError as error:
            raise MalformedError(f"{error}; {_FIX}") from error

    def _parse(self, text: bytes | memoryview, schema: Any, count: int) -> Any:
        rows = self.parse(text, schema)
        if len(rows) != count:
            raise MalformedError(f"rows: {count}, records: {len(rows)}; write one record per row")
        return rows

    def rows(self, text: bytes | memoryview, whole: bool) -> Rows:
        """Find the whole rows of a text; see :func:`find_rows`."""
        return find_rows(text, whole, delimiter=self.delimiter, comment=self.comment)

    def scan(self, file: DataFile) -> Index:
        if file.read_at(0, min(4, file.size)).startswith(_COMPRESSED):
            raise DataError(file.path, "is compressed and cannot be read by index; unpack it first")
        start, schema = self.header(file)
        parses_all = self.skip_damaged or file.size <= SAMPLE_BYTES
        blocks: list[tuple[int, int, int]] = []
        left_out: list[tuple[int, int]] = []
        damaged = 0

        def add(text: bytes | memoryview, count: int) -> None:
            nonlocal schema
            found = self._parse(text, None, count).schema
            schema = self.merge(schema, found)

        for offset, text, rows in self._row_blocks(file, start):
            if rows is None:
                damaged += 1
                break
            sound = np.ones(len(rows), dtype=bool)
            if parses_all:
                sound = self._sound(file, offset, text, rows, add, skip=self.skip_damaged)
            for row in np.flatnonzero(~sound).tolist():
                begin, end = rows.span(row, row + 1)
                left_out.append((offset + begin, offset + end))
            blocks.append((offset, rows.end, int(sound.sum())))
        damaged += len(left_out)
        if not parses_all:
            for offset, length, _ in _spread(blocks, self.block_bytes):
                text = file.read_at(offset, length)
                self._sound(file, offset, text, self.rows(text, True), add)
            schema = pa.schema([(field.name, _not_null(field.type)) for field in schema])
        try:
            schema = self.finish(schema)
        except MixedTypesError as error:
            raise DataError(file.path, str(error)) from error
        if any(count for _, _, count in blocks) and not schema.names:
            raise DataError(file.path, "no record has a field", start)
        places = np.array(left_out, dtype="<i8")
        return Index.of(
            blocks,
            damaged,
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
            left_out=base64.b64encode(places.tobytes()).decode(),
        )

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
        skip: bool = False,
    ) -> npt.NDArray[np.bool_]:
        """Return True for each record that passes a check. If the whole text does not pass, smaller
        and smaller parts of it are checked, down to single records.

        Args:
            check: function of whole rows and their number of records.
            skip: leave out malformed records. Records that are seen to be malformed without a
                parser are left out first, since single checks are slow. False: raise DataError for
                the first malformed record.
        """
        sound = np.ones(len(rows), dtype=bool)
        parts = [np.arange(len(rows))] if len(rows) else []
        is_whole = True
        while parts:
            part = parts.pop()
            try:
                check(_joined(text, rows, part), len(part))
            except MalformedError as error:
                if is_whole and skip:
                    sound = ~self.malformed(text, rows)
                    parts = [np.flatnonzero(sound)] if sound.any() else []
                elif len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                else:
                    place = offset + int(rows.starts[part[0]])
                    if not skip or isinstance(error, MixedTypesError):
                        raise self._named(file, place, error) from error
                    sound[part] = False
            is_whole = False
        return sound

    def _named(self, file: DataFile, offset: int, error: MalformedError) -> DataError:
        """Return the error of the record at ``offset``, with its line in a local file."""
        if self.is_far:  # to count the lines would transfer all of the object before the record
            return DataError(file.path, str(error), offset)
        lines = 1
        for start in range(0, offset, _PIECE):
            lines += file.read_at(start, min(_PIECE, offset - start)).count(b"\n")
        return DataError(file.path, f"line {lines:,}: {error}", offset)


def _joined(
    text: bytes | memoryview, rows: Rows, part: npt.NDArray[np.int64]
) -> bytes | memoryview:
    """Return the text of some records, in order."""
    first, last = int(part[0]), int(part[-1]) + 1
    if last - first == len(part):
        begin, end = rows.span(first, last)
        return text[begin:end]
    spans = (rows.span(row, row + 1) for row in part.tolist())
    return b"".join(text[begin:end] for begin, end in spans)


def _spread(blocks: Sequence[tuple[int, int, int]], block_bytes: int) -> list[tuple[int, int, int]]:
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
