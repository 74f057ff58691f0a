"""Schemas of Avro as schemas of Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_edl.errors import UsageError

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
    """The ``pyarrow.Schema`` of the records of a parsed Avro schema, and the names of the columns
    whose values are UUIDs, which Arrow has as texts.

    Raises:
        UsageError: the schema is no record, or has a type that Arrow has not.
    """
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise UsageError("the Avro schema is no record; write records with named fields")
    named: dict[str, Any] = {}
    fields = [(field["name"], _type(field["type"], field["name"], named)) for field in _of(schema)]
    uuids = [field["name"] for field in _of(schema) if _is_uuid(field["type"])]
    return pa.schema(fields), uuids


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
        return pa.decimal256(kind["precision"], kind.get("scale", 0))
    if logical == "uuid" and "." in where:
        raise UsageError(f"{where}: a UUID within a field; write it as string")
    if base == "record":
        return pa.struct(
            [(f["name"], _type(f["type"], f"{where}.{f['name']}", named)) for f in _of(kind)]
        )
    if base == "array":
        return pa.list_(_type(kind["items"], f"{where}.items", named))
    if base == "map":
        return pa.map_(pa.string(), _type(kind["values"], f"{where}.values", named))
    if base == "enum":
        return pa.string()
    if base == "fixed":
        return pa.string() if logical == "uuid" else pa.binary(kind["size"])
    return _LOGICAL.get((base, logical)) or _type(base, where, named)
