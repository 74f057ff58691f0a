"""Avro container files, read by fastavro as ``pyarrow.Table``.

A block is about half a megabyte of whole Avro blocks. The scan reads only their sizes.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import MAX_RECORD_BYTES, BlockSource, Gathered, Index
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Records

try:
    import fastavro
except ImportError as error:
    raise UsageError("Avro files: fastavro is missing: pip install 'torch-edl[avro]'") from error

log = logging.getLogger(__name__)

_SYNC_BYTES = 16

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


class AvroSource(BlockSource):
    """The records of an Avro container file. With ``skip_damaged``, blocks that cannot be decoded
    are left out, and a block of a wrong size ends the file."""

    kind = "avro"
    block_bytes = 512 << 10
    schema = pa.schema([])
    _texts: Sequence[str] = ()

    def prepare(self, details: dict[str, Any]) -> None:
        self._head = base64.b64decode(details["head"])
        if not self._head:
            return
        try:
            schema = fastavro.block_reader(io.BytesIO(self._head)).writer_schema
            self.schema, self._texts = _arrow_schema(schema)
        except UsageError as error:
            raise DataError(self.name, str(error)) from error
        except Exception as error:  # fastavro checks few parts of a schema
            raise DataError(self.name, f"the schema cannot be read: {error!r}") from error

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        data = self._head + file.read_at(offset, length)
        try:
            records: list[Any] = list(fastavro.reader(io.BytesIO(data)))
            for name in self._texts:  # columns of UUIDs
                for record in records:
                    if record[name] is not None:
                        record[name] = str(record[name])
            rows = pa.Table.from_pylist(records, self.schema)
        except Exception as error:  # fastavro raises various exceptions for damaged data
            raise DataError(file.path, f"a block cannot be read: {error!r}", offset) from error
        if len(rows) != count:
            raise DataError(file.path, f"{len(rows)} records, the scan saw {count}", offset)
        return rows

    def scan(self, file: DataFile) -> Index:
        details = {"head": base64.b64encode(_head(file)).decode()}
        self.prepare(details)
        gathered = Gathered(self.block_bytes)
        damaged = records = 0
        offset = len(self._head)
        while offset < file.size:
            try:
                end, found = self._block_at(file, offset)
                if self.skip_damaged:
                    self.decode(file, offset, end - offset, found)
            except DataError as error:
                if not self.skip_damaged:
                    raise DataError(
                        file.path, f"record {records:,}: {error.reason}", offset
                    ) from error
                log.warning("left out: %s", error)
                damaged += found if error.offset is not None else 1
                if error.offset is None:
                    break
            else:
                gathered.add(offset, end, found)
                records += found
            offset = end
        return gathered.index(damaged, **details)

    def _block_at(self, file: DataFile, offset: int) -> tuple[int, int]:
        """Return the end of the Avro block at ``offset``, and its number of records; raise
        DataError without an offset if there is no whole block."""
        reader: Any = file.stream()
        reader.seek(offset)
        try:
            count: Any = fastavro.schemaless_reader(reader, "long", None)
            size: Any = fastavro.schemaless_reader(reader, "long", None)
        except Exception as error:
            raise DataError(file.path, f"no block begins here: {error!r}") from error
        end = reader.tell() + size + _SYNC_BYTES
        if count < 0 or not 0 <= size <= MAX_RECORD_BYTES or end > file.size:
            raise DataError(file.path, f"a block of {count} records and {size} bytes")
        if file.read_at(end - _SYNC_BYTES, _SYNC_BYTES) != self._head[-_SYNC_BYTES:]:
            raise DataError(file.path, "a block without the mark of its end")
        return end, count


def _head(file: DataFile) -> bytes:
    """Return the header of the file; empty for an empty file."""
    if not file.size:
        return b""
    reader: Any = file.stream()
    try:
        fastavro.block_reader(reader)
    except Exception as error:
        raise DataError(file.path, f"no Avro file: {error!r}", 0) from error
    return file.read_at(0, reader.tell())


def _arrow_schema(schema: Any) -> tuple[Any, list[str]]:
    """Return the ``pyarrow.Schema`` of a parsed Avro schema, and the names of columns of UUIDs,
    which Arrow has as texts. Types that Arrow lacks, and types of which a few bytes may hold any
    number of values, raise UsageError."""
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
