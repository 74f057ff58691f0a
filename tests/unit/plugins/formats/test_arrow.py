"""Arrow IPC, and datasets of Hugging Face on disk."""

from __future__ import annotations

import contextlib
import io
import os
import random
import struct
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from torch_edl.data.sources import expand, open_source
from torch_edl.errors import DataError, UsageError
from torch_edl.plugins.formats import arrow as arrow_module
from torch_edl.plugins.formats.arrow import RowCheck


def table(count: int = 100) -> Any:
    return pa.table({"id": list(range(count)), "text": [f"text {i}" for i in range(count)]})


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("legacy", [False, True])
def test_compressed_and_early_streams(
    tmp_path: Path, compression: str | None, legacy: bool
) -> None:
    path = tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression, use_legacy_format=legacy)
    with pa.ipc.new_stream(path, table().schema, options=options) as writer:
        writer.write_table(table(), max_chunksize=7)
    assert open_source(str(path)).read(3, 50) == table().slice(3, 47)


def big_endian(stream: bytes) -> bytes:
    """A stream that says of its numbers that a big-endian machine wrote them."""
    raw = bytearray(stream)
    message = 8 + struct.unpack_from("<I", raw, 8)[0]
    at = message - struct.unpack_from("<i", raw, message)[0] + 4 + 2 * 2  # of the header's offset
    schema = message + struct.unpack_from("<H", raw, at)[0]
    schema += struct.unpack_from("<I", raw, schema)[0]
    endianness = schema - struct.unpack_from("<i", raw, schema)[0] + 4
    struct.pack_into("<H", raw, endianness, raw.index(b"\1\0", schema) - schema)
    return bytes(raw)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_numbers_of_a_big_endian_machine(tmp_path: Path, compression: str | None) -> None:
    file, rows = io.BytesIO(), pa.table({"x": pa.array([1, 256])})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(file, rows.schema, options=options) as writer:
        writer.write_table(rows)
    (tmp_path / "a.arrow").write_bytes(big_endian(file.getvalue()))
    read = open_source(str(tmp_path / "a.arrow")).read(0, 2)
    assert read["x"].to_pylist() == [1 << 56, 1 << 48]  # type: ignore[call-overload]


def test_a_dictionary_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    parts = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()]
    whole = pa.table({"kind": pa.chunked_array(parts)})
    with pa.ipc.new_stream(path, whole.schema) as writer:
        writer.write_table(whole)
    source = open_source(str(path))
    assert source.read(1, 4)["kind"].to_pylist() == ["b", "a", "c"]  # type: ignore[call-overload]
    assert source.read(3, 4)["kind"].to_pylist() == ["c"]  # type: ignore[call-overload]


def test_the_scan_reads_no_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.arrow"
    large = pa.table({"x": pa.array(range(1_000_000))})
    feather.write_feather(large, path, compression="uncompressed", chunksize=250_000)
    read: list[int] = []
    whole = arrow_module.DataFile.read_at

    def read_at(self: Any, offset: int, size: int) -> bytes:
        read.append(size)
        return whole(self, offset, size)

    monkeypatch.setattr(arrow_module.DataFile, "read_at", read_at)
    assert open_source(str(path)).count == 1_000_000
    assert sum(read) < 40_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"FEA1" + bytes(60) + b"FEA1", "Feather version 1; write it again"),
        (b"ARROW1" + bytes(60) + b"ARROW", "the file has no end"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.feather").write_bytes(content)
    with pytest.raises(DataError, match=f"a.feather: {message}"):
        open_source(str(tmp_path / "a.feather"))


def test_offsets_that_lead_out_of_a_column_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    feather.write_feather(table(), path, compression="uncompressed")
    raw = path.read_bytes()
    offsets = b"".join(i.to_bytes(4, "little") for i in (0, 6, 12, 18))
    at = raw.index(offsets)
    path.write_bytes(raw[: at + 4] + b"\xff\xff\xff\x7f" + raw[at + 8 :])
    with pytest.raises(DataError, match="a batch cannot be read"):
        open_source(str(path)).read(0, 100)
    assert open_source(str(path), skip_damaged=True).damaged == 100


def test_rows_of_a_mapped_file_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    whole = pa.table({"x": np.arange(2_000_000), "text": ["some words"] * 2_000_000})
    feather.write_feather(whole, path, compression="uncompressed", chunksize=len(whole))
    source = open_source(str(path))
    before = pa.total_allocated_bytes()
    rows = source.read(1_000_000, 1_000_100)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert rows == whole.slice(1_000_000, 100)


# ---- rows are looked at as thoroughly as Arrow does it ----


_TEXTS = ["plain", "", "größer", None, "more"]
_SCHEMAS = [
    {"n": pa.int64(), "t": pa.string()},
    {"t": pa.large_string(), "b": pa.binary()},
    {"l": pa.list_(pa.int32()), "d": pa.dictionary(pa.int8(), pa.string())},
]


def column(kind: Any, texts: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(texts).dictionary_encode().cast(kind)
    if pa.types.is_list(kind):
        return pa.array([None if text is None else list(text.encode()) for text in texts], kind)
    if pa.types.is_integer(kind):
        return pa.array([None if text is None else len(text) for text in texts], kind)
    return pa.array(texts).cast(kind)


def spoiled(array: Any, noise: random.Random) -> Any:
    """The array with a byte of one of its buffers overwritten."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(
            spoiled(array.indices, noise), array.dictionary, safe=False
        )
    buffers = [None if b is None else bytearray(b.to_pybytes()) for b in array.buffers()]
    # Not the bits of what is null: there Arrow compares numbers that a slice counts anew.
    buffer = noise.choice([b for b in buffers[1:] if b])
    buffer[noise.randrange(len(buffer))] = noise.choice([0, 1, 7, 0x7F, 0x80, 0xFF])
    if pa.types.is_list(array.type):
        own = [None if b is None else pa.py_buffer(b) for b in buffers[:2]]
        return pa.Array.from_buffers(array.type, len(array), own, children=[array.values])
    made = [None if b is None else pa.py_buffer(b) for b in buffers]
    return pa.Array.from_buffers(array.type, len(array), made)


@pytest.mark.parametrize("schema", _SCHEMAS, ids=lambda schema: "-".join(schema))
def test_damage_is_found_as_arrow_finds_it(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_module, "_FEW_ROWS", 0)
    noise = random.Random(0)
    found = 0
    for _ in range(400):
        texts = noise.choices(_TEXTS if noise.random() < 0.5 else ["plain", "more"], k=20)
        columns = {name: column(kind, texts) for name, kind in schema.items()}
        name = noise.choice(list(columns))
        with contextlib.suppress(pa.ArrowInvalid):  # some damage cannot even be made
            columns[name] = spoiled(columns[name], noise)
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        rows = rows.slice(noise.randrange(10))
        try:
            rows.validate(full=True)
        except pa.ArrowInvalid:
            found += 1
            with pytest.raises(pa.ArrowInvalid):
                RowCheck(rows.schema)(rows)
        else:
            RowCheck(rows.schema)(rows)
    assert found > 20


def test_what_is_nested_is_not_looked_at_by_slices() -> None:
    flat, nested = pa.schema(_SCHEMAS[0].items()), pa.schema(_SCHEMAS[2].items())
    assert RowCheck(flat).is_flat
    assert not RowCheck(nested).is_flat


# ---- datasets of Hugging Face ----


@pytest.fixture
def datasets() -> Any:
    if os.environ.get("CI"):
        import datasets

        return datasets
    return pytest.importorskip("datasets", reason="pip install datasets")


def test_a_saved_dataset_is_read_in_its_order(tmp_path: Path, datasets: Any) -> None:
    saved = datasets.Dataset.from_dict({"id": list(range(50)), "label": ["a", "b"] * 25})
    saved = saved.class_encode_column("label").shuffle(seed=1)
    saved.save_to_disk(tmp_path / "set", num_shards=12)
    files = expand([str(tmp_path / "set")])
    assert [Path(file).name[:10] for file in files] == [f"data-{n:05d}" for n in range(12)]
    parts = [open_source(file).read(0, open_source(file).count) for file in files]
    assert pa.concat_tables(parts).to_pydict() == saved.to_dict()
    # With the library, a task is a dataset again, with the features of the whole.
    assert datasets.Dataset(parts[0]).features["label"].names == ["a", "b"]


def test_a_saved_dataset_behind_a_url(tmp_path: Path, datasets: Any) -> None:
    saved = datasets.Dataset.from_dict({"id": list(range(50))})
    saved.save_to_disk(tmp_path / "set", num_shards=2)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "set"), "/set", recursive=True)
    files = expand(["memory://set"])
    memory.store.clear()
    assert [Path(file).name for file in files] == [f"data-{n:05d}-of-00002.arrow" for n in (0, 1)]


def test_a_split_must_be_named(tmp_path: Path, datasets: Any) -> None:
    part = datasets.Dataset.from_dict({"id": [1]})
    datasets.DatasetDict(train=part, test=part).save_to_disk(tmp_path / "set")
    with pytest.raises(UsageError, match=r"splits train, test; name one, such as .*set/train"):
        expand([str(tmp_path / "set")])
    assert len(expand([str(tmp_path / "set" / "train")])) == 1
