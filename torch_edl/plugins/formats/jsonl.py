"""JSON lines: one object per line, read by pyarrow.

Integers and floating-point numbers become floating-point numbers, and times mixed with other texts
become texts. Other mixtures of types are rejected, as are integers beyond 64 bits, which pyarrow
would round, and deeply nested records, which would crash the process. A field that no record of the
sample has is left out, with a warning.
"""

from __future__ import annotations

import contextlib
import json as python_json
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from torch_edl.data.sources.files.lines import LineSource, MalformedError, MixedTypesError
from torch_edl.data.sources.files.rows import Rows

log = logging.getLogger(__name__)

MAX_DEPTH = 64
"""Maximum nesting of objects and arrays. Arrow's formats have the same limit. pyarrow's parser
needs 40 s for 5,000 levels, and overflows the stack of a thread at 20,000."""

_ROW = re.compile(r" in row \d+$")
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"


class JsonLinesSource(LineSource):
    """The records of a file of JSON lines."""

    kind = "jsonl"
    _has_warned = False

    def parse(self, text: bytes | memoryview, schema: Any) -> Any:
        self._check_text(text)
        try:
            rows = _read(text, schema, "infer" if schema is None else "error")
        except pa.ArrowInvalid as error:
            if schema is None:
                raise MalformedError(_ROW.sub("", str(error))) from error
            rows = self._without_others(text, schema)
        if any(_may_be_wide(column) for column in rows.columns):
            _refuse_wide(bytes(text))
        return rows

    def merge(self, before: Any, found: Any) -> Any:
        return pa.schema(list(_wider("", pa.struct(list(before)), pa.struct(list(found)))))

    def _without_others(self, text: bytes | memoryview, schema: Any) -> Any:
        """Return the records without fields that the schema lacks."""
        try:
            rows = _read(text, schema, "ignore")
        except pa.ArrowInvalid as error:
            raise MalformedError(_ROW.sub("", str(error))) from error
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: fields that no record of the sample has are left out; the columns are %s; to "
                "have other fields, write them in the first record",
                self.name,
                ", ".join(schema.names),
            )
        return rows

    def _check_text(self, text: bytes | memoryview) -> None:
        """Raise MalformedError unless the text is UTF-8, which pyarrow does not check, and each
        line is one object that is not nested too deeply.

        pyarrow's parser does not end a record at the end of its line, so nesting may grow over many
        lines.
        """
        try:
            str(text, "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError(f"text that is not UTF-8: {error.reason}") from error
        for _, reason in _wrong_lines(text, self.rows(text, True)):
            raise MalformedError(reason)

    def malformed(self, text: bytes | memoryview, rows: Rows) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(rows), dtype=bool)
        found[[row for row, _ in _wrong_lines(text, rows)]] = True
        return found


def _read(text: bytes | memoryview, schema: Any, unexpected: str) -> Any:
    return json.read_json(
        pa.BufferReader(text),
        # One block per call, and one thread, since the training step uses the other cores.
        json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _wrong_lines(text: bytes | memoryview, rows: Rows) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that is no object, or is nested too deeply, with the reason."""
    data = np.frombuffer(text, dtype=np.uint8)
    last = rows.ends - 1
    for end in b"\n\r":
        last = last - (data[last] == end)
    brackets = (data | 0x20) == ord("{")  # 0x20 maps [ to {
    # Few lines begin or end with blanks or have this many brackets; only those are examined.
    doubtful = np.add.reduceat(brackets, rows.starts, dtype=np.int32) > MAX_DEPTH
    doubtful |= (data[rows.starts] != ord("{")) | (data[last] != ord("}"))
    for row in np.flatnonzero(doubtful).tolist():
        line = bytes(text[rows.starts[row] : rows.ends[row]]).strip(_BLANKS).removeprefix(_BOM)
        if not (line.startswith(b"{") and line.endswith(b"}")):
            shown = line[:40].decode(errors="replace")
            yield row, f"expected one JSON object per line, and found: {shown}"
        elif _depth(line) > MAX_DEPTH:
            yield row, f"more than {MAX_DEPTH} objects and arrays within each other"


def _depth(text: bytes) -> int:
    letters = np.frombuffer(_TEXT.sub(b"", text), dtype=np.uint8) | 0x20  # maps [ to {, and ] to }
    steps = (letters == ord("{")).astype(np.int32) - (letters == ord("}"))
    return int(steps.cumsum().max(initial=0))


def _wider(name: str, a: Any, b: Any) -> Any:
    """Return the type to which values of both types can be converted."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = {field.name: field.type for field in a}
        for field in b:
            known = fields.get(field.name)
            inner = f"{name}.{field.name}" if name else field.name
            fields[field.name] = field.type if known is None else _wider(inner, known, field.type)
        return pa.struct(list(fields.items()))
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(_wider(f"{name}[]", a.value_type, b.value_type))
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.string() in (a, b) and any(map(pa.types.is_timestamp, (a, b))):
        return pa.string()
    raise MixedTypesError(f"column {name!r} is {b}, and {a} before; write it as one type")


def _may_be_wide(column: Any) -> bool:
    """Return True if the column has doubles that may be integers beyond int64."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(_may_be_wide(pc.struct_field(column, i)) for i in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _may_be_wide(pc.list_flatten(column))
    if not pa.types.is_floating(kind) or not len(column):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), 2.0**63)).as_py())


def _refuse_wide(text: bytes) -> None:
    wide: list[str] = []

    def integer(found: str) -> int:
        if len(found) > 20 or not -(2**63) <= int(found) < 2**63:
            wide.append(found)
        return 0

    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            python_json.loads(line, parse_int=integer)
        if wide:
            raise MalformedError(
                f"{wide[0][:40]} does not fit 64 bits with a sign and would be rounded; write ids "
                "modulo 2**63, as texts, or with a decimal point what is no id"
            )
