"""Avro container files."""

from __future__ import annotations

import datetime
import decimal
import io
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from torch_edl.data.sources import Source, open_source
from torch_edl.errors import DataError

NOW = datetime.datetime(2026, 5, 4, 3, 2, 1, 5000, datetime.UTC)
NODE = {"type": "record", "name": "node", "fields": [{"name": "x", "type": "int"}]}


def write(path: Path, kind: Any, values: list[Any], **options: Any) -> Source:
    schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": kind}]}
    with open(path, "wb") as file:
        fastavro.writer(file, schema, [{"c": value} for value in values], **options)
    return open_source(str(path))


@pytest.mark.parametrize(
    ("kind", "value", "arrow"),
    [
        ("int", 7, pa.int32()),
        ("float", 0.5, pa.float32()),
        ("boolean", True, pa.bool_()),
        ("bytes", b"x", pa.binary()),
        (["null", "long"], None, pa.int64()),
        (NODE, {"x": 1}, pa.struct([("x", pa.int32())])),
        ({"type": "array", "items": "string"}, ["a"], pa.list_(pa.string())),
        ({"type": "map", "values": "int"}, [("a", 1)], pa.map_(pa.string(), pa.int32())),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", pa.string()),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab", pa.binary(2)),
        ({"type": "int", "logicalType": "date"}, NOW.date(), pa.date32()),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOW, pa.timestamp("us", "UTC")),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            decimal.Decimal("1.25"),
            pa.decimal256(5, 2),
        ),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=7)), pa.string()),
    ],
)
def test_types(tmp_path: Path, kind: Any, value: Any, arrow: Any) -> None:
    given = dict(value) if kind == {"type": "map", "values": "int"} else value
    source = write(tmp_path / "a.avro", kind, [given, given])
    read: Any = source.read(0, 2)
    assert read.schema.field("c").type == arrow
    assert read["c"].to_pylist() == [value, value]


def test_a_name_stands_for_its_type(tmp_path: Path) -> None:
    pair = {
        "type": "record",
        "name": "pair",
        "fields": [{"name": "a", "type": NODE}, {"name": "b", "type": "node"}],
    }
    value = {"a": {"x": 1}, "b": {"x": 2}}
    source = write(tmp_path / "a.avro", pair, [value])
    assert source.read(0, 1)["c"].to_pylist() == [value]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (["int", "string"], 1, "c: a union of several types"),
        (
            {
                "type": "record",
                "name": "list",
                "fields": [{"name": "next", "type": ["null", "list"]}],
            },
            {"next": None},
            "c.next: the type list within itself",
        ),
    ],
)
def test_types_that_arrow_has_not(tmp_path: Path, kind: Any, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"a.avro: {message}"):
        write(tmp_path / "a.avro", kind, [value])


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_codecs(tmp_path: Path, codec: str) -> None:
    source = write(tmp_path / "a.avro", "long", list(range(500)), codec=codec, sync_interval=50)
    assert source.read(123, 456)["c"].to_pylist() == list(range(123, 456))  # type: ignore[call-overload]


def test_a_block_of_a_wrong_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    write(path, "long", list(range(1000)), sync_interval=50)
    with open(path, "rb") as file:
        blocks = list(fastavro.block_reader(file))
    raw = path.read_bytes()
    end = blocks[3].offset + blocks[3].size
    path.write_bytes(raw[: end - 1] + bytes([raw[end - 1] ^ 1]) + raw[end:])
    before = sum(block.num_records for block in blocks[:3])
    with pytest.raises(DataError, match=f"record {before}: a block without the mark of its end"):
        open_source(str(path))
    source = open_source(str(path), skip_damaged=True)
    assert (source.count, source.damaged) == (before, 1)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.avro").write_bytes(b"no avro at all, but long enough to be read" * 9)
    with pytest.raises(DataError, match=r"a.avro at byte 0: no Avro file"):
        open_source(str(tmp_path / "a.avro"))


def test_a_schema_that_is_no_record_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    fastavro.writer(buffer, "long", [1, 2])
    (tmp_path / "a.avro").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match="the Avro schema is no record"):
        open_source(str(tmp_path / "a.avro"))
