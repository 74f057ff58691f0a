"""CSV and TSV: a header, then rows, read as ``pyarrow.Table`` with the same types everywhere.

A block is about a megabyte of whole rows, found with the quoting rules of pyarrow's parser, so that
a newline within quotes never splits a row. The scan parses every block once, in order to count the
rows, find ragged rows before training starts, and determine the type of each column over the whole
file. Any range can then be parsed alone with the same types. Integers that do not fit int64 are
rejected, since pyarrow would read all integers of the column as rounded doubles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import BlockSource, Index, growing
from torch_edl.errors import DataError
from torch_edl.interfaces import Records

BLOCK_BYTES = 1 << 20
"""Size of a block. Half of this size parses at three quarters of the speed, because of the cost of
each call of the parser."""

MAX_ROW_BYTES = 64 << 20
"""Maximum size of a row; a longer row probably has a quote that is not closed."""

_INTEGER = re.compile(r"[+-]?\d{1,4000}")  # int() rejects longer texts

_BLANK = re.compile(rb"[\r\n]*")

_BOM = b"\xef\xbb\xbf"

# Every type that pyarrow infers from text.
_TYPES = {
    str(kind): kind
    for kind in (
        pa.null(),
        pa.int64(),
        pa.bool_(),
        pa.date32(),
        pa.time32("s"),
        pa.timestamp("s"),
        pa.timestamp("ns"),
        pa.timestamp("s", "UTC"),
        pa.timestamp("ns", "UTC"),
        pa.float64(),
        pa.string(),
        pa.binary(),
    )
}

# Type of a column of integers of which some do not fit int64; pyarrow infers doubles.
_WIDE = "wide integers"

# Common type of two types, without loss; any other pair is read as strings.
_WIDER = {
    ("int64", "double"): "double",
    ("int64", _WIDE): _WIDE,
    (_WIDE, "double"): "double",
    ("date32[day]", "timestamp[s]"): "timestamp[s]",
    ("date32[day]", "timestamp[ns]"): "timestamp[ns]",
    ("timestamp[s]", "timestamp[ns]"): "timestamp[ns]",
    ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"): "timestamp[ns, tz=UTC]",
}


class CsvSource(BlockSource):
    """The rows of a CSV file, or of a TSV file with the suffix ``.tsv`` or ``.tab``.

    With ``skip_damaged``, rows with another number of fields than the header are left out.
    """

    kind = "csv"

    def __init__(self, path: str, *, skip_damaged: bool = False) -> None:
        self._delimiter = "\t" if path.endswith((".tsv", ".tab")) else ","
        # Tokens that determine row borders: a quoted part, which begins at the start of a field
        # (group 1 is empty if the quote is not closed), or the end of a row.
        self._token = re.compile(
            rb'(?:\A|(?<=[%s\r\n]))"[^"]*(?:""[^"]*)*("?)|\r\n?|\n' % self._delimiter.encode()
        )
        super().__init__(path, skip_damaged=skip_damaged)

    def prepare(self, details: dict[str, Any]) -> None:
        self._types = {name: _TYPES[kind] for name, kind in details["columns"]}
        self.schema = pa.schema(list(self._types.items()))

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        return self._parse(file, offset, length, list(self._types), self._types)[0]

    def scan(self, file: DataFile) -> Index:
        """Count the rows and find the types of the columns, in one pass."""
        if file.size == 0:
            return Index.of([], columns=[])
        if file.read_at(0, min(4, file.size)).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
            raise DataError(file.path, "is compressed and cannot be read by index; unpack it first")
        start, names = self._header(file)
        kinds = ["null"] * len(names)
        blocks = []
        damaged = 0
        wide: dict[str, tuple[int, str]] = {}  # column -> first such record, text
        count = 0
        for offset, length in self._row_blocks(file, start):
            if length < 0:
                damaged += 1
                continue
            rows, ragged = self._parse(file, offset, length, names, None)
            damaged += ragged
            blocks.append((offset, length, len(rows)))
            if not len(rows):
                continue
            for place, (name, column) in enumerate(zip(names, rows.columns, strict=True)):
                kind = str(column.type)
                if kind == "double" and kinds[place] != "double" and _may_be_wide(column):
                    texts, _ = self._parse(file, offset, length, names, {name: pa.string()})
                    found = _first_wide(column.to_pylist(), texts[name].to_pylist())
                    if found is not None:
                        kind = _WIDE
                        wide.setdefault(name, (count + found[0], found[1]))
                kinds[place] = _join(kinds[place], kind)
            count += len(rows)
        for name, kind in zip(names, kinds, strict=True):
            if kind == _WIDE:
                record, text = wide[name]
                raise DataError(
                    file.path,
                    f"column {name!r}: {text} (record {record:,}) does not fit 64 bits with a "
                    "sign, so all integers of the column would become floating-point numbers, and "
                    "large ones would be rounded; write ids modulo 2**63, or with a decimal point "
                    "what is no id",
                )
        return Index.of(blocks, damaged, columns=list(zip(names, kinds, strict=True)))

    def _header(self, file: DataFile) -> tuple[int, list[str]]:
        """Return the offset of the first row, and the names of the columns."""
        start = len(_BOM) if file.read_at(0, min(3, file.size)) == _BOM else 0
        for head, whole in growing(file, start, BLOCK_BYTES, MAX_ROW_BYTES):
            ends, unclosed = self._row_ends(head, whole)
            # Blank lines before the header are skipped.
            found = next((end for end in ends if head[:end].strip(b"\r\n")), None)
            if found is not None:
                break
        if found is None and not whole:
            raise DataError(file.path, "no header: the first row does not end", start)
        if found is None and unclosed is not None:
            at = start + unclosed
            raise DataError(file.path, "a quoted name in the header is not closed", at)
        line = head[: len(head) if found is None else found]
        try:
            blank = not line.strip(b"\r\n")
            names = [] if blank else list(self._read(line + b"\n", None, None).column_names)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise DataError(file.path, f"the header cannot be read: {error}", start) from error
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(file.path, f"column {twice[0]!r} appears twice in the header", start)
        return start + len(line), names

    def _row_blocks(self, file: DataFile, start: int) -> Iterator[tuple[int, int]]:
        """Yield offset and length of each block of whole rows; length -1 for a damaged tail, which
        is left out."""
        while start < file.size:
            for block, whole in growing(file, start, BLOCK_BYTES, MAX_ROW_BYTES):
                end, unclosed = self._last_row_end(block, whole)
                if end:
                    break
            if end:
                yield start, end
                start += end
                continue
            # No row ends: a quote is not closed, or the row is too long.
            if not self.skip_damaged:
                if unclosed is None:
                    raise DataError(file.path, f"a row longer than {MAX_ROW_BYTES} bytes", start)
                raise DataError(file.path, "a quoted field is not closed", start + unclosed)
            yield start, -1
            return

    def _last_row_end(self, block: bytes, whole: bool) -> tuple[int, int | None]:
        """Return the end of the last whole row of the block, and the start of an unclosed quote."""
        if b'"' in block:
            ends, unclosed = self._row_ends(block, whole)
            return (ends[-1] if ends else 0), unclosed
        if whole:
            return len(block), None
        # A \r at the end of the block may be the first half of a \r\n.
        return max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1, None

    def _row_ends(self, block: bytes | memoryview, whole: bool) -> tuple[list[int], int | None]:
        """Return the ends of all whole rows, and the start of a quote that the block does not
        close."""
        ends = []
        for token in self._token.finditer(block):
            if token[1] is None:
                if token.end() < len(block) or token[0] != b"\r":
                    ends.append(token.end())
            elif not token[1]:
                return ends, token.start()
        if whole and (not ends or ends[-1] < len(block)):
            ends.append(len(block))
        return ends, None

    def _parse(
        self,
        file: DataFile,
        offset: int,
        length: int,
        names: list[str],
        types: dict[str, Any] | None,
    ) -> tuple[Any, int]:
        """Return the table of a block of whole rows, and the number of ragged rows left out. If
        ``types`` is None, all types are inferred from the block."""
        block = file.view_at(offset, length)
        if _BLANK.fullmatch(block):
            return pa.table({name: pa.nulls(0) for name in names}), 0
        ragged: list[Any] = []

        def on_ragged(row: Any) -> str:
            ragged.append(row)
            return "skip" if self.skip_damaged else "error"

        # pyarrow passes only rows in valid UTF-8 to the handler. Another block is therefore parsed
        # twice: in an encoding of all bytes, to find ragged rows, and then without these rows.
        # After a scan without skip_damaged, a block has no ragged rows.
        may_be_ragged = types is None or self.skip_damaged
        encoding = "latin-1" if may_be_ragged and not _is_utf8(block) else "utf-8"
        try:
            table = self._read(block, names, types, on_ragged, encoding)
            if encoding != "utf-8":
                bad = {row.text.encode(encoding) for row in ragged}
                kept = [row for row in self._rows(block) if row.rstrip(b"\r\n") not in bad]
                table = self._read(b"".join(kept) or b"\n", names, types)
        except pa.ArrowInvalid as error:
            if ragged:
                row = ragged[0]
                raise DataError(
                    file.path,
                    f"a row of {row.actual_columns} fields, the header has {row.expected_columns}: "
                    f"{row.text[:80]!r}",
                    offset + self._find_row(block, row.text.encode(encoding)),
                ) from error
            raise DataError(file.path, str(error), offset) from error
        return table, len(ragged)

    def _rows(self, block: memoryview) -> Iterator[bytes]:
        start = 0
        for end in self._row_ends(block, True)[0]:
            yield bytes(block[start:end])
            start = end

    def _find_row(self, block: memoryview, text: bytes) -> int:
        start = 0
        for row in self._rows(block):
            if row.rstrip(b"\r\n") == text:
                break
            start += len(row)
        return start

    def _read(
        self,
        block: bytes | memoryview,
        names: list[str] | None,
        types: Any,
        on_ragged: Any = None,
        encoding: str = "utf-8",
    ) -> Any:
        # Unlike read_csv, open_csv does not pass each block from thread to thread.
        with csv.open_csv(
            pa.BufferReader(block),
            # One block per call, since pyarrow would split rows with quoted newlines.
            read_options=csv.ReadOptions(
                column_names=names,
                use_threads=False,
                # Transcoding doubles the size of characters that are not ASCII.
                block_size=(1 if encoding == "utf-8" else 2) * len(block) + 1,
                encoding=encoding,
            ),
            parse_options=csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=on_ragged
            ),
            convert_options=csv.ConvertOptions(column_types=types),
        ) as reader:
            return reader.read_all()


def _is_utf8(block: memoryview) -> bool:
    try:
        str(block, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _may_be_wide(column: Any) -> bool:
    """Return True if a column of doubles may be integers of which some do not fit int64."""
    values = column.drop_null().to_numpy()
    return bool((np.abs(values) >= 2.0**63).any() and (np.trunc(values) == values).all())


def _first_wide(values: list[Any], texts: list[str]) -> tuple[int, str] | None:
    """Return row and text of the first integer that does not fit int64; None if all integers fit,
    or some values are not integers."""
    known = [
        (row, text.strip())
        for row, (value, text) in enumerate(zip(values, texts, strict=True))
        if value is not None
    ]
    if not all(_INTEGER.fullmatch(text) for _, text in known):
        return None
    return next(((row, text) for row, text in known if not -(2**63) <= int(text) < 2**63), None)


def _join(a: str, b: str) -> str:
    """Return the type as which the values of both types can be read."""
    if b not in (*_TYPES, _WIDE):
        b = "string"
    if a == b or b == "null":
        return a
    if a == "null":
        return b
    if "binary" in (a, b):
        return "binary"
    return _WIDER.get((a, b)) or _WIDER.get((b, a)) or "string"
