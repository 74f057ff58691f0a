"""Converts schemas of Avro to schemas of Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types

from torch_edl.errors import UsageError

_MAX_PRECISION = 76  # maximum of Arrow's decimal256

_TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


def arrow_schema(schema: Any) -> tuple[Any, list[str]]:
    """Return the ``pyarrow.Schema`` of a parsed Avro schema, and the names of columns of UUIDs.

    Arrow has UUIDs as texts.

    Raises:
        UsageError: the schema is no record, has a type that Arrow lacks, or has a type of which a
            few bytes may hold any number of values.
    """
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise UsageError("the Avro schema is no record; write records with named fields")
    named: dict[str, Any] = {}
    fields = [(field["name"], _type(field["type"], field["name"], named)) for field in _of(schema)]
    if _is_empty(pa.struct(fields)):
        raise UsageError("no field of a record takes a byte; write fields that have values")
    uuids = [field["name"] for field in _of(schema) if _is_uuid(field["type"])]
    return pa.schema(fields), uuids


def _is_empty(kind: Any) -> bool:
    """Return True if a value occupies no bytes, so that sizes do not limit the number of values."""
    if types.is_struct(kind):
        return all(_is_empty(field.type) for field in kind)
    fixed = types.is_fixed_size_binary(kind) and not types.is_decimal(kind)
    return types.is_null(kind) or (fixed and kind.byte_width == 0)


def _of(record: Any) -> list[Any]:
    fields: list[Any] = record["fields"]
    return fields


def _is_uuid(kind: Any) -> bool:
    if isinstance(kind, list):
        return any(map(_is_uuid, kind))
    return isinstance(kind, dict) and kind.get("logicalType") == "uuid"


def _type(kind: Any, where: str, named: dict[str, Any]) -> Any:
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        if len(others) > 1:
            raise UsageError(f"{where}: a union of several types, which Arrow has not")
        return _type(others[0], where, named) if others else pa.null()
    if isinstance(kind, str):
        known = _TYPES.get(kind, named.get(kind))
        if known is None:
            raise UsageError(f"{where}: the type {kind} within itself, which Arrow has not")
        return known
    found = _complex(kind, where, named)
    if "name" in kind:
        named[kind["name"]] = found
    return found


def _complex(kind: dict[str, Any], where: str, named: dict[str, Any]) -> Any:
    base: str = kind["type"]
    logical: str = kind.get("logicalType", "")
    if logical == "decimal":
        precision, scale = kind.get("precision"), kind.get("scale", 0)
        if not isinstance(precision, int) or not 1 <= precision <= _MAX_PRECISION:
            raise UsageError(
                f"{where}: a decimal of the precision {precision}; write one of 1 to "
                f"{_MAX_PRECISION} digits"
            )
        return pa.decimal256(precision, scale)
    if logical == "uuid" and "." in where:
        raise UsageError(f"{where}: a UUID within a field; write it as string")
    if base == "record":
        return pa.struct(
            [(f["name"], _type(f["type"], f"{where}.{f['name']}", named)) for f in _of(kind)]
        )
    if base == "array":
        items = _type(kind["items"], f"{where}.items", named)
        if _is_empty(items):
            raise UsageError(f"{where}: an array whose items take no byte; leave the field out")
        return pa.list_(items)
    if base == "map":
        return pa.map_(pa.string(), _type(kind["values"], f"{where}.values", named))
    if base == "enum":
        return pa.string()
    if base == "fixed":
        return pa.string() if logical == "uuid" else pa.binary(kind["size"])
    return _LOGICAL.get((base, logical)) or _type(base, where, named)
