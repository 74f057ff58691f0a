"""Small files that once ended or filled the process that read them, or raised a raw traceback.

Each file is opened in a process of its own, with bounds on memory and on time.
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from torch_edl.data.sources import open_source

MEMORY_BYTES, CPU_S = 2 << 30, 20

READER = f"""
import os, resource, sys
from torch_edl.data.sources import open_source
from torch_edl.plugins.formats import arrow, avro, jsonl, webdataset
from torch_edl.data.sources.files import csv, parquet
from torch_edl.errors import DataError

def read(path, skip_damaged):
    try:
        source = open_source(path, skip_damaged=skip_damaged)
        records = source.read(0, min(source.count, 10))
        return f"{{len(records)}} records"
    except DataError as error:
        assert error.path == path
        return f"DataError: {{error.reason}}"

grown = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for path in sys.argv[1:]:
    for skip_damaged in (False, True):
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_AS, [grown + {MEMORY_BYTES}] * 2)
            resource.setrlimit(resource.RLIMIT_CPU, [{CPU_S}] * 2)
            resource.setrlimit(resource.RLIMIT_CORE, [0, 0])
            print(os.path.basename(path), skip_damaged, read(path, skip_damaged), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


def long(value: int) -> bytes:
    """An integer of Avro: zigzag, seven bits a byte."""
    value = (value << 1) ^ (value >> 63)
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def avro(kind: Any, count: int = 1, values: bytes = b"", *, encoding: str = "utf-8") -> bytes:
    """A file of one block that claims ``count`` records with one field of a type."""
    record = {"type": "record", "name": "r", "fields": [{"name": "é", "type": kind}]}
    schema = json.dumps(record, ensure_ascii=False).encode(encoding)
    head = b"Obj\1" + long(1) + long(11) + b"avro.schema" + long(len(schema)) + schema + long(0)
    mark = b"0123456789abcdef"
    return head + mark + long(count) + long(len(values)) + values + mark


def null_batch(rows: int, make: Any) -> bytes:
    """A batch of a column of nulls, which takes no byte however many rows it claims."""
    file, table = io.BytesIO(), pa.table({"n": pa.nulls(123_456_789)})
    with make(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue().replace(struct.pack("<q", 123_456_789), struct.pack("<q", rows))


def null_row_group(rows: int) -> bytes:
    """A row group whose footer claims a number of rows."""
    file = io.BytesIO()
    parquet.write_table(pa.table({"n": pa.nulls(1000)}), file)
    raw = file.getvalue()
    (size,) = struct.unpack("<I", raw[-8:-4])
    footer = raw[-8 - size : -8].replace(long(1000), long(rows))
    return raw[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def latin_parquet() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"xx": [1]}), file, store_schema=False)
    return file.getvalue().replace(b"xx", b"x\xe9")


def latin_arrow() -> bytes:
    file, table = io.BytesIO(), pa.table({"xx": [1]})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue().replace(b"xx", b"x\xe9")


def latin_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        tar.addfile(tarfile.TarInfo("é.txt"))
    return file.getvalue()


def decimal(**fields: Any) -> bytes:
    return avro({"type": "bytes", "logicalType": "decimal", **fields}, 1, long(1) + b"\1")


EMPTY = {"type": "record", "name": "empty", "fields": [{"name": "n", "type": "null"}]}
NO_BYTES = {"type": "fixed", "name": "f", "size": 0}

CRASHERS = {
    "arrays.jsonl": (b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n", "line 1: more than 64"),
    "objects.jsonl": (b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"\n", "line 1: more than 64"),
    "slow.jsonl": (b'{"a":1}\n{"a":' + b"[" * 5000 + b"]" * 5000 + b"}\n", "line 2: more than 64"),
    "disguised.jsonl": (
        b'{"b":"' + b"]" * 20_000 + b'\\"","a":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n",
        "line 1: more than 64",
    ),
    "lines.jsonl": (
        b'{"a":\n' + b"[\n" * 20_000 + b"]\n" * 20_000 + b"}\n",
        "line 1: expected one",
    ),
    "objects-of-lines.jsonl": (b'{"a":{}\n' + b',"a":[{}\n' * 20_000, "line 1: JSON parse error"),
    "nulls.avro": (avro("null", 2**60), "no field of a record takes a byte"),
    "records.avro": (avro(EMPTY, 2**60), "no field of a record takes a byte"),
    "array.avro": (
        avro({"type": "array", "items": "null"}, 1, long(2**60) + long(0)),
        "an array whose items take no byte",
    ),
    "array-of-records.avro": (
        avro({"type": "array", "items": EMPTY}, 1, long(2**60) + long(0)),
        "an array whose items take no byte",
    ),
    "array-of-fixed.avro": (
        avro(["null", {"type": "array", "items": NO_BYTES}], 1, long(1) + long(2**60) + long(0)),
        "an array whose items take no byte",
    ),
    "no-precision.avro": (decimal(), "precision None"),
    "precision.avro": (decimal(precision=77), "precision 77"),
    "scale.avro": (decimal(precision=5, scale="2"), "schema cannot be read|no Avro file"),
    "latin.avro": (avro("int", 1, long(1), encoding="latin-1"), "utf-8"),
    "latin.csv": (b"\xe9,b\n1,2\n", "utf-8"),
    "latin.jsonl": (b'{"\xe9": 1}\n', "UTF-8"),
    "latin.parquet": (latin_parquet(), "utf-8"),
    "latin.arrow": (latin_arrow(), "utf-8"),
    "latin.tar": (latin_tar(), r"member \\xe9.txt: the name is not UTF-8"),
    "nulls.arrow": (null_batch(2**62, pa.ipc.new_file), f"a batch of {2**62} rows"),
    "most.arrow": (null_batch(2**63 - 1, pa.ipc.new_stream), f"a batch of {2**63 - 1} rows"),
    "stream.arrow": (null_batch(2**31, pa.ipc.new_stream), f"a batch of {2**31} rows"),
    "nulls.parquet": (null_row_group(2**60), f"{2**60} rows"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What reading each file came to, without and with ``skip_damaged``."""
    folder = tmp_path_factory.mktemp("crashers")
    for name, (content, _) in CRASHERS.items():
        (folder / name).write_bytes(content)
    paths = [str(folder / name) for name in CRASHERS]
    env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home")}
    command = [sys.executable, "-P", "-c", READER, *paths]
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [line.split(" ", 2) for line in out.splitlines()]
    return {(name, skip_damaged): result for name, skip_damaged, result in lines}


@pytest.mark.parametrize("name", CRASHERS)
def test_a_crasher_is_a_data_error(found: dict[tuple[str, str], str], name: str) -> None:
    assert re.search(f"^DataError: .*{CRASHERS[name][1]}", found.get((name, "False"), "it crashed"))
    assert (name, "True") in found


def test_nulls_of_a_real_file_are_rows(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(null_batch(2**31 - 1, pa.ipc.new_file))
    source = open_source(str(tmp_path / "a.arrow"))
    assert source.count == 2**31 - 1
    assert len(source.read(2**31 - 4, 2**31 - 1)) == 3
