"""The formats of the tests of sources, and how to make a file of each."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import duckdb
import fastavro
import psycopg
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from tests.kafka_server import Kafka
from tests.maxcompute_server import MaxCompute
from tests.postgres_server import USER
from torch_edl.data.sources import IndexedSource, Records, Source, open_source, parts
from torch_edl.data.sources.files import parquet as parquet_module
from torch_edl.data.sources.files import sliced as sliced_module
from torch_edl.data.sources.files.blocks import BlockSource
from torch_edl.data.sources.files.recordio import RecordIOWriter
from torch_edl.plugins.formats import arrow as arrow_module
from torch_edl.plugins.formats.avro import AvroSource
from torch_edl.plugins.formats.tfrecord import TFRecordSource, TFRecordWriter
from torch_edl.plugins.formats.webdataset import WebDatasetSource
from torch_edl.plugins.sql import source as sql_module

COUNT = 40
PER_BLOCK = 7


def as_bytes(count: int, shift: int = 0) -> list[bytes]:
    noise = random.Random(0)
    return [b"%d:" % (i + shift) + noise.randbytes(i % 11) for i in range(count)]


def as_table(count: int, shift: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": list(range(shift, shift + count)),
            "text": [f'a "quoted",\nvalue {i}' if i % 3 else "plain" for i in range(count)],
            "number": [i + 0.5 for i in range(count)],
        }
    )


@dataclass(frozen=True)
class Case:
    """A format, and how to make a file of it with several blocks."""

    name: str
    suffix: str
    make: Callable[[int, int], Records]
    write: Callable[[Path, Records], None]
    checked: bool
    """Every byte of the data is under a checksum."""
    url: Callable[[Path], str] | None = None
    """The name of what was written, where that is not the path."""
    content: Callable[[bytes], bytes] = bytes
    """Function from a file to the content in which offsets count."""


def recordio(dialect: str, compressor: str) -> Case:
    def write(path: Path, records: Records) -> None:
        with RecordIOWriter(
            path, dialect=dialect, compressor=compressor, records_per_chunk=PER_BLOCK
        ) as writer:
            for record in records:
                writer.write(record)

    return Case(f"recordio-{dialect}-{compressor}", ".recordio", as_bytes, write, True)


def write_tfrecord(path: Path, records: Records) -> None:
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)


def write_parquet(path: Path, records: Records) -> None:
    parquet.write_table(records, path, row_group_size=PER_BLOCK, write_page_checksum=True)


def write_csv(path: Path, records: Records) -> None:
    csv.write_csv(records, path)


def arrow_file(path: Path, records: Records, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, records.schema, options=options) as writer:
        writer.write_table(records, max_chunksize=PER_BLOCK)


def arrow_stream(path: Path, records: Records) -> None:
    with pa.ipc.new_stream(path, records.schema) as writer:
        writer.write_table(records, max_chunksize=PER_BLOCK)


def as_categories(count: int, shift: int = 0) -> pa.Table:
    """With a dictionary that grows from batch to batch."""
    table = as_table(count, shift)
    texts = [f"category {i // 5}" for i in range(count)]
    parts = [texts[start : start + PER_BLOCK] for start in range(0, count, PER_BLOCK)]
    known: list[str] = []
    chunks = []
    for part in parts:
        known += [text for text in dict.fromkeys(part) if text not in known]
        places = pa.array([known.index(text) for text in part], pa.int32())
        chunks.append(pa.DictionaryArray.from_arrays(places, pa.array(known)))
    kind = pa.dictionary(pa.int32(), pa.string())
    return table.set_column(1, "text", pa.chunked_array(chunks, kind))


def feather_file(path: Path, records: Records) -> None:
    feather.write_feather(records, path, chunksize=PER_BLOCK)


def json_lines(path: Path, records: Records) -> None:
    text = "".join(json.dumps(row) + "\n" for row in records.to_pylist())
    raw = text.encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw[: len(raw) // 2]) + gzip.compress(raw[len(raw) // 2 :])
    elif path.suffix == ".zst":
        raw = bytes(cramjam.zstd.compress(raw))
    path.write_bytes(raw)


def unzstd(raw: bytes) -> bytes:
    return bytes(cramjam.zstd.decompress(raw))


def as_features(count: int, shift: int = 0) -> pa.Table:
    rows = [list(range(1, i % 4 + 1)) for i in range(count)]
    return pa.table(
        {
            "label": pa.array([float(i + shift) for i in range(count)], pa.float64()),
            "indices": pa.array(rows, pa.list_(pa.int64())),
            "values": pa.array([[n / 4 for n in row] for row in rows], pa.list_(pa.float64())),
        }
    )


def libsvm(path: Path, records: Records) -> None:
    with open(path, "w") as file:
        for row in records.to_pylist():
            pairs = zip(row["indices"], row["values"], strict=True)
            file.write(" ".join([str(row["label"]), *(f"{i}:{v}" for i, v in pairs)]) + "\n")


def as_samples(count: int, shift: int = 0) -> pa.Table:
    noise = random.Random(0)
    return pa.table(
        {
            "__key__": [f"part/{i + shift:05d}" for i in range(count)],
            "cls": pa.array([str(i).encode() for i in range(count)], pa.large_binary()),
            "seg.png": pa.array(
                [noise.randbytes(i % 700) if i % 3 != 1 else None for i in range(count)],
                pa.large_binary(),
            ),
        }
        if count
        else {}
    )


def webdataset(path: Path, records: Records) -> None:
    with tarfile.open(path, "w") as tar:
        for row in records.to_pylist():
            for extension in ("cls", "seg.png"):
                if row[extension] is not None:
                    member = tarfile.TarInfo(f"{row['__key__']}.{extension}")
                    member.size = len(row[extension])
                    tar.addfile(member, io.BytesIO(row[extension]))


def avro(path: Path, records: Records) -> None:
    schema = {
        "type": "record",
        "name": "record",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "text", "type": ["null", "string"]},
            {"name": "number", "type": "double"},
        ],
    }
    with open(path, "wb") as file:
        fastavro.writer(file, schema, records.to_pylist(), codec="deflate", sync_interval=200)


FILES = [
    *(recordio(d, c) for d in ("go", "python") for c in ("none", "snappy", "gzip")),
    Case("tfrecord", ".tfrecord", as_bytes, write_tfrecord, True),
    Case("csv", ".csv", as_table, write_csv, False),
    Case("parquet", ".parquet", as_table, write_parquet, False),
    Case("parquet-spilled", ".parquet", as_table, write_parquet, False),
    Case("arrow-file", ".arrow", as_table, arrow_file, False),
    Case("arrow-stream", ".arrow", as_table, arrow_stream, False),
    Case("arrow-dictionaries", ".arrow", as_categories, arrow_stream, False),
    Case("arrow-spilled", ".arrow", as_table, arrow_file, False),
    Case("feather", ".feather", as_table, feather_file, False),
    Case("jsonl", ".jsonl", as_table, json_lines, False),
    Case("jsonl-gzip", ".jsonl.gz", as_table, json_lines, False, content=gzip.decompress),
    Case("jsonl-zstd", ".jsonl.zst", as_table, json_lines, False, content=unzstd),
    Case("libsvm", ".libsvm", as_features, libsvm, False),
    Case("webdataset", ".tar", as_samples, webdataset, False),
    Case("avro", ".avro", as_table, avro, False),
]
MEMORY = [
    Case("memory-bytes", "", as_bytes, lambda path, records: None, True),
    Case("memory-table", "", as_table, lambda path, records: None, True),
]


def sql(dialect: str, url: Callable[[Path], str], connect: Callable[[str], Any]) -> Case:
    """A table of a database, in the order of its column ``id``."""

    def write(path: Path, records: Records) -> None:
        assert isinstance(records, pa.Table)
        with contextlib.closing(connect(url(path))) as connection:
            cursor = connection.cursor()
            cursor.execute("DROP TABLE IF EXISTS records")
            cursor.execute(
                "CREATE TABLE records (id bigint PRIMARY KEY, text text, number double precision)"
            )
            # Not in the order in which they are to be read.
            rows = [tuple(row.values()) for row in records.to_pylist()]
            mark = "%s" if dialect == "postgresql" else "?"
            for row in sorted(rows, key=lambda row: row[0] * 7 % 13):
                cursor.execute(f"INSERT INTO records VALUES ({mark}, {mark}, {mark})", row)
            connection.commit()

    def name(path: Path) -> str:
        return f"{url(path)}#table=records&key=id"

    return Case(f"sql-{dialect}", "", as_table, write, True, name)


def postgres_url(path: Path) -> str:
    return f"postgresql://{USER}@127.0.0.1:{os.environ['PGPORT']}/postgres"


def kafka_topic(path: Path) -> str:
    return hashlib.sha256(bytes(path)).hexdigest()[:16]


def write_kafka(path: Path, records: Records) -> None:
    Kafka.at(os.environ["EDL_TEST_KAFKA"]).produce(kafka_topic(path), 0, records)


def kafka_name(path: Path) -> str:
    (found,) = parts([f"kafka://{os.environ['EDL_TEST_KAFKA']}/{kafka_topic(path)}/0"])
    return found


def write_maxcompute(path: Path, records: Records) -> None:
    maxcompute[-1].write(f"t{kafka_topic(path)}", records)


def maxcompute_name(path: Path) -> str:
    return maxcompute[-1].url(f"t{kafka_topic(path)}")


maxcompute: list[MaxCompute] = []
"""The one of the module that runs."""

DATABASES = [
    sql("postgresql", postgres_url, psycopg.connect),
    sql("sqlite", lambda path: f"sqlite:///{path}", lambda url: sqlite3.connect(url[10:])),
    sql("duckdb", lambda path: f"duckdb:///{path}", lambda url: duckdb.connect(url[10:])),
    sql(
        "sqlite+pysqlite",
        lambda path: f"sqlite+pysqlite:///{path}",
        lambda url: sqlite3.connect(url[19:]),
    ),
    Case("maxcompute", "", as_table, write_maxcompute, True, maxcompute_name),
    Case("kafka", "", as_bytes, write_kafka, True, kafka_name),
]


def cut_small(case: Case | None, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Forty records are several blocks."""
    if case is not None and case.name.endswith("-spilled"):
        monkeypatch.setattr(sliced_module, "SPILL_ABOVE_BYTES", 0)
        monkeypatch.setattr(parquet_module, "SLICE_BYTES", 60)
        monkeypatch.setattr(arrow_module, "SLICE_BYTES", 400)
    monkeypatch.setattr(AvroSource, "block_bytes", 100)
    monkeypatch.setattr(BlockSource, "block_bytes", 150)
    monkeypatch.setattr(WebDatasetSource, "block_bytes", 4000)
    monkeypatch.setattr(sql_module, "BLOCK_ROWS", PER_BLOCK)
    monkeypatch.setattr(sql_module, "PAGE_BLOCKS", 2)
    monkeypatch.setattr(TFRecordSource, "block_bytes", 100)
    monkeypatch.setenv("TORCH_EDL_HOME", str(home))


def written(case: Case, folder: Path, records: Records) -> Path:
    path = folder / f"data{case.suffix}"
    case.write(path, records)
    return path


def opened(case: Case, folder: Path, records: Records) -> Source:
    if case in MEMORY:
        return IndexedSource(records)
    path = written(case, folder, records)
    return open_source(str(path) if case.url is None else case.url(path))


def rows(records: Records) -> list[object]:
    return list(records) if isinstance(records, list) else records.to_pylist()


def everything(source: Source) -> list[object]:
    return rows(source.read(0, source.count))
