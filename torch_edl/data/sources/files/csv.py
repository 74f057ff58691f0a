"""CSV and TSV: a header, then rows.

Rows are found with the quoting rules of pyarrow's parser, so that a newline within quotes never
splits a row. Integers that do not fit int64 are rejected, since pyarrow would read all integers of
the column as rounded doubles.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files import lines
from torch_edl.data.sources.files.blocks import growing
from torch_edl.data.sources.files.lines import LineSource, MalformedError, MixedTypesError
from torch_edl.data.sources.files.rows import Rows, field_counts
from torch_edl.errors import DataError

_INTEGER = re.compile(r"[+-]?\d{1,4000}")  # int() rejects longer texts

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

# Common type of two types, without loss; any other pair is read as strings.
_WIDER = {
    ("int64", "double"): "double",
    ("date32[day]", "timestamp[s]"): "timestamp[s]",
    ("date32[day]", "timestamp[ns]"): "timestamp[ns]",
    ("timestamp[s]", "timestamp[ns]"): "timestamp[ns]",
    ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"): "timestamp[ns, tz=UTC]",
}

# Metadata of a column of integers, of which this one does not fit int64; pyarrow infers doubles.
_WIDE = b"integer"


class CsvSource(LineSource):
    """The rows of a CSV file, or of a TSV file with the suffix ``.tsv`` or ``.tab``.

    A row with another number of fields than the header is malformed.
    """

    kind = "csv"

    def __init__(self, path: str, *, skip_damaged: bool = False) -> None:
        self.delimiter = b"\t" if path.endswith((".tsv", ".tab")) else b","
        self._names: list[str] = []
        super().__init__(path, skip_damaged=skip_damaged)

    def header(self, file: DataFile) -> tuple[int, Any]:
        start = len(_BOM) if file.read_at(0, min(3, file.size)) == _BOM else 0
        for text, whole in growing(file, start, self.block_bytes, lines.MAX_ROW_BYTES):
            rows = self.rows(text, whole)
            if len(rows):
                break
        if not len(rows) and not whole:
            raise DataError(file.path, "no header: the first row does not end", start)
        if not len(rows) and rows.unclosed is not None:
            at = start + rows.unclosed
            raise DataError(file.path, "a quoted name in the header is not closed", at)
        if not len(rows):
            return file.size, pa.schema([])
        end = int(rows.ends[0])
        try:
            self._names = list(self._read(text[:end] + b"\n").column_names)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise DataError(file.path, f"the header cannot be read: {error}", start) from error
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise DataError(file.path, f"column {twice[0]!r} appears twice in the header", start)
        return start + end, pa.schema([(name, pa.null()) for name in self._names])

    def prepare(self, details: dict[str, Any]) -> None:
        super().prepare(details)
        self._names = self.schema.names

    def parse(self, text: bytes | memoryview, schema: Any) -> Any:
        types = None if schema is None else dict(zip(schema.names, schema.types, strict=True))
        try:
            rows = self._read(text, self._names, types)
        except pa.ArrowInvalid as error:
            raise MalformedError(self._reason(text, types) or str(error)) from error
        if schema is not None:
            return rows
        fields = [self._inferred(text, rows.field(name), rows[name]) for name in self._names]
        return pa.table(rows.columns, schema=pa.schema(fields))

    def malformed(self, text: bytes | memoryview, rows: Rows) -> npt.NDArray[np.bool_]:
        return np.not_equal(field_counts(text, rows, self.delimiter), len(self._names))

    def merge(self, before: Any, found: Any) -> Any:
        return pa.schema([_join(a, b) for a, b in zip(before, found, strict=True)])

    def finish(self, schema: Any) -> Any:
        for field in schema:
            if field.metadata:
                raise MixedTypesError(
                    f"column {field.name!r}: {field.metadata[_WIDE].decode()} does not fit 64 bits "
                    "with a sign, so all integers of the column would become floating-point "
                    "numbers, and large ones would be rounded; write ids modulo 2**63, or with a "
                    "decimal point what is no id"
                )
        return schema

    def _inferred(self, text: bytes | memoryview, field: Any, column: Any) -> Any:
        """Return the field of a column whose type pyarrow has inferred."""
        if str(field.type) == "double" and _may_be_wide(column):
            texts = self._read(text, self._names, {field.name: pa.string()})[field.name]
            found = _first_wide(column.to_pylist(), texts.to_pylist())
            return field if found is None else field.with_metadata({_WIDE: found})
        return field

    def _reason(self, text: bytes | memoryview, types: Any) -> str:
        """Return why a single row cannot be parsed; empty: unknown, or several rows."""
        if len(self.rows(text, True)) > 1:
            return ""
        row = bytes(text).strip(b"\r\n")
        try:
            fields = self._read(row + b"\n")  # as names
            if fields.num_columns != len(self._names):
                return (
                    f"a row of {fields.num_columns} fields, the header has {len(self._names)}: "
                    f"{row[:80].decode(errors='replace')!r}"
                )
            values = fields.column_names if types is not None else ()
            for name, value in zip(self._names, values, strict=False):
                as_bytes = dict.fromkeys(self._names, pa.binary())
                try:
                    self._read(text, self._names, {**as_bytes, name: types[name]})
                except pa.ArrowInvalid:
                    return f"column {name!r}: {value[:80]!r} is no {types[name]}"
        except (pa.ArrowInvalid, UnicodeDecodeError):
            pass
        return ""

    def _read(self, text: bytes | memoryview, names: Any = None, types: Any = None) -> Any:
        # Unlike read_csv, open_csv does not pass each block from thread to thread.
        with csv.open_csv(
            pa.BufferReader(text),
            # One block per call, since pyarrow would split rows with quoted newlines.
            read_options=csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(text) + 1
            ),
            parse_options=csv.ParseOptions(
                delimiter=self.delimiter.decode(), newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(column_types=types),
        ) as reader:
            return reader.read_all()


def _may_be_wide(column: Any) -> bool:
    """Return True if a column of doubles may be integers of which some do not fit int64."""
    values = column.drop_null().to_numpy()
    return bool((np.abs(values) >= 2.0**63).any() and (np.trunc(values) == values).all())


def _first_wide(values: list[Any], texts: list[str]) -> str | None:
    """Return the first integer that does not fit int64; None if all integers fit, or some values
    are not integers."""
    known = [t.strip() for value, t in zip(values, texts, strict=True) if value is not None]
    if not all(map(_INTEGER.fullmatch, known)):
        return None
    return next((text for text in known if not -(2**63) <= int(text) < 2**63), None)


def _join(a: Any, b: Any) -> Any:
    """Return the field as which the values of both fields can be read."""
    kinds = str(a.type), str(b.type)
    if kinds[1] not in _TYPES:
        return pa.field(a.name, pa.string())
    if kinds[1] == "null":
        return a
    if kinds[0] == "null":
        return b
    if kinds == ("double", "double"):  # a decimal point tells that integers are no ids
        return a if not a.metadata else b
    if kinds[0] == kinds[1]:
        return a
    if "binary" in kinds:
        return pa.field(a.name, pa.binary())
    wider = _WIDER.get(kinds) or _WIDER.get(kinds[::-1])
    if wider == "double":
        return a if kinds[0] == "double" else b
    return pa.field(a.name, _TYPES[wider] if wider else pa.string())
