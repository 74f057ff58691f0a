"""JSON lines: one object per line, read by pyarrow.

A column has one type in the whole file. Integers and floating-point numbers become floating-point
numbers, and times mixed with other texts become texts. Other mixtures of types are rejected, as are
integers beyond 64 bits, which pyarrow would round, and deeply nested records, which would crash the
process.
"""

from __future__ import annotations

import contextlib
import json as python_json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from torch_edl.plugins.formats.lines import LineSource, MalformedError

MAX_DEPTH = 64
"""Maximum nesting of objects and arrays. Arrow's formats have the same limit. pyarrow's parser
needs 40 s for 5,000 levels, and overflows the stack of a thread at 20,000."""

_ROW = re.compile(r" in row (\d+)$")
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BLANKS = b" \t\r"
_BOM = b"\xef\xbb\xbf"


class JsonLinesSource(LineSource):
    """The records of a file of JSON lines."""

    kind = "jsonl"

    def inferred(self, block: bytes) -> Any:
        _check_text(block)
        lines = _lines(block)
        _check_nesting(lines)
        rows = _read(block, None)
        if len(rows) != len(lines):
            raise MalformedError(f"{len(rows)} objects in {len(lines)} lines; write one per line")
        if any(_may_be_wide(column) for column in rows.columns):
            _refuse_wide(lines)
        return rows

    def parsed(self, block: bytes) -> Any:
        return _read(block, self.schema)

    def merged(self, before: Any, found: Any) -> Any:
        return pa.schema(list(_wider("", pa.struct(list(before)), pa.struct(list(found)))))


def _read(block: bytes, schema: Any) -> Any:
    if not block.strip():
        return (schema or pa.schema([])).empty_table()
    try:
        return json.read_json(
            pa.BufferReader(block),
            # One block per call, and one thread, since the training step uses the other cores.
            json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "error",
            ),
        )
    except pa.ArrowInvalid as error:
        found = _ROW.search(str(error))
        row = None if found is None else int(found[1])
        raise MalformedError(_ROW.sub("", str(error)), row) from error


def _check_text(block: bytes) -> None:
    """Raise MalformedError unless the block is UTF-8, which pyarrow does not check."""
    try:
        block.decode()
    except UnicodeDecodeError as error:
        row = len(_lines(block[: error.start].rpartition(b"\n")[0]))
        raise MalformedError(f"text that is not UTF-8: {error.reason}", row) from error


def _check_nesting(lines: list[bytes]) -> None:
    """Raise MalformedError unless each line is one object that is not nested too deeply.

    pyarrow's parser does not end a record at the end of its line, so nesting may grow over many
    lines.
    """
    for row, line in enumerate(lines):
        text = line.strip(_BLANKS).removeprefix(_BOM)
        if not (text.startswith(b"{") and text.endswith(b"}")):
            shown = text[:40].decode(errors="replace")
            raise MalformedError(f"expected one JSON object per line, and found: {shown}", row)
        # Few records have this many brackets; only those are examined closely.
        if text.count(b"{") + text.count(b"[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise MalformedError(f"more than {MAX_DEPTH} objects and arrays within each other", row)


def _depth(text: bytes) -> int:
    letters = np.frombuffer(_TEXT.sub(b"", text), dtype=np.uint8) | 0x20  # maps [ to {, and ] to }
    steps = (letters == ord("{")).astype(np.int32) - (letters == ord("}"))
    return int(steps.cumsum().max(initial=0))


def _lines(block: bytes) -> list[bytes]:
    return [line for line in block.split(b"\n") if line.strip()]


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
    raise MalformedError(f"column {name!r} is {b}, and {a} before; write it as one type")


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


def _refuse_wide(lines: list[bytes]) -> None:
    for row, line in enumerate(lines):
        wide: list[str] = []

        def integer(text: str, found: list[str] = wide) -> int:
            if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
                found.append(text)
            return 0

        with contextlib.suppress(ValueError):
            python_json.loads(line, parse_int=integer)
        if wide:
            raise MalformedError(
                f"{wide[0][:40]} does not fit 64 bits with a sign and would be rounded; write ids "
                "modulo 2**63, as texts, or with a decimal point what is no id",
                row,
            )
