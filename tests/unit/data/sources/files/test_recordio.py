"""RecordIO: both dialects byte by byte, and what damage looks like."""

from __future__ import annotations

import re
import struct
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c
import pytest

from torch_edl.data.sources.files.recordio import (
    DIALECTS,
    RecordIOSource,
    RecordIOWriter,
)
from torch_edl.errors import DataError, UsageError

MAGIC = "04030201"
# Three records: "hi", an empty one, "you".
PLAIN = "02000000 6869 00000000 03000000 796f75"
# One record of twenty times "a": 24 bytes, a literal of 5, then a copy of 19 at distance 1.
RAW_SNAPPY = "18 10 14000000 61 4a 0100"
# Stream identifier; a chunk of "hi" as it is; a chunk compressed as above. Each has its CRC.
FRAMED_SNAPPY = (
    f"ff060000 734e61507059 01 0a0000 8cfb3587 02000000 686900 0e0000 d5a9ac37 {RAW_SNAPPY}"
)
# Header, one stored block of "hi", CRC-32, length.
GZIP = "1f8b08000000000000ff 01 0600f9ff 02000000 6869 fb384065 06000000"

A20 = b"a" * 20
GOLDEN = {
    # Go: magic, CRC-32, compressor, size, records.
    "go-none": (f"{MAGIC} 49851a54 00000000 11000000 03000000 {PLAIN}", [b"hi", b"", b"you"]),
    "go-snappy": (f"{MAGIC} 5e3f7609 01000000 2a000000 02000000 {FRAMED_SNAPPY}", [b"hi", A20]),
    "go-gzip": (f"{MAGIC} da245814 02000000 1d000000 01000000 {GZIP}", [b"hi"]),
    # Python: magic, records, CRC-32C, compressor, size.
    "python-none": (f"{MAGIC} 03000000 6182d655 01000000 11000000 {PLAIN}", [b"hi", b"", b"you"]),
    "python-snappy": (f"{MAGIC} 01000000 cd40edfa 02000000 0a000000 {RAW_SNAPPY}", [A20]),
    "python-gzip": (f"{MAGIC} 01000000 3779aaaf 03000000 1d000000 {GZIP}", [b"hi"]),
    # Early versions of it: plain CRC-32.
    "python-crc32": (f"{MAGIC} 01000000 fb7d4e64 02000000 0a000000 {RAW_SNAPPY}", [A20]),
}


def everything(path: Path, *, skip_damaged: bool = False) -> list[bytes]:
    source = RecordIOSource(str(path), skip_damaged=skip_damaged)
    records = source.read(0, source.count)
    assert isinstance(records, list)
    return records


def write(path: Path, records: Iterable[bytes], *, per_chunk: int = 5, **options: str) -> Path:
    with RecordIOWriter(path, records_per_chunk=per_chunk, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def chunk_offsets(path: Path) -> list[int]:
    raw = path.read_bytes()
    found, place = [], 0
    while place < len(raw):
        found.append(place)
        place += 20 + struct.unpack_from("<I", raw, place + 12)[0]
    return found


def flip(path: Path, *offsets: int, bits: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    for offset in offsets:
        raw[offset] ^= bits
    path.write_bytes(raw)


RECORDS = [b"record %d" % i for i in range(23)]


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("times", [1, 3])
def test_golden_bytes_are_read(tmp_path: Path, name: str, times: int) -> None:
    text, expected = GOLDEN[name]
    path = tmp_path / "golden.recordio"
    path.write_bytes(bytes.fromhex(text) * times)
    assert everything(path) == expected * times
    source = RecordIOSource(str(path))
    assert source.dialect == name.split("-")[0]
    for place in range(source.count):
        assert source.read(place, place + 1) == [expected[place % len(expected)]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_golden_bytes_are_written(tmp_path: Path, dialect: str) -> None:
    path = write(tmp_path / "w", [b"hi", b"", b"you"], dialect=dialect, compressor="none")
    assert path.read_bytes() == bytes.fromhex(GOLDEN[f"{dialect}-none"][0])


def test_a_chunk_ends_after_its_records_or_its_bytes(tmp_path: Path) -> None:
    assert len(chunk_offsets(write(tmp_path / "a", RECORDS, per_chunk=10))) == 3
    with RecordIOWriter(tmp_path / "b", bytes_per_chunk=100) as writer:
        for _ in range(6):
            writer.write(b"x" * 50)
    assert len(chunk_offsets(tmp_path / "b")) == 3


def test_a_writer_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = write(tmp_path / "f", [b"old"])

    def records() -> Iterator[bytes]:
        yield b"new"
        raise KeyError

    with pytest.raises(KeyError):
        write(path, records(), per_chunk=1)
    assert everything(path) == [b"old"]
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_writer_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    for options, message in [
        ({"dialect": "rust"}, "dialect 'rust': choose go or python"),
        ({"compressor": "zstd"}, "compressor 'zstd': choose one of none, snappy, gzip"),
        ({"records_per_chunk": 0}, "chunks of 0 records"),
    ]:
        with pytest.raises(UsageError, match=message):
            RecordIOWriter(tmp_path / "f", **options)  # type: ignore[arg-type]


def test_the_scan_reads_headers_only(tmp_path: Path) -> None:
    path = write(tmp_path / "f", RECORDS, compressor="none")
    # The payload of the third chunk is wrong: the scan does not see it, reading it does.
    at = chunk_offsets(path)[2]
    flip(path, at + 25)
    source = RecordIOSource(str(path))
    assert source.count == 23
    assert source.read(0, 10) == RECORDS[:10]
    assert source.read(15, 23) == RECORDS[15:]
    with pytest.raises(DataError, match="checksum does not match") as caught:
        source.read(9, 11)
    assert (caught.value.path, caught.value.offset) == (str(path), at)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("chunk", range(5))
@pytest.mark.parametrize("byte", [0, 4, 8, 12, 16, 22])
def test_a_damaged_chunk_is_left_out_alone(
    tmp_path: Path, dialect: str, chunk: int, byte: int
) -> None:
    path = write(tmp_path / "f", RECORDS, dialect=dialect, compressor="none")
    at = [found.start() for found in re.finditer(b"\4\3\2\1", path.read_bytes())][chunk]
    flip(path, at + byte, bits=0x11)
    with pytest.raises(DataError, match=str(path)):
        everything(path)
    source = RecordIOSource(str(path), skip_damaged=True)
    assert source.damaged == 1
    assert source.read(0, source.count) == RECORDS[: 5 * chunk] + RECORDS[5 * chunk + 5 :]


def test_neighbouring_damaged_chunks_are_counted_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path / "f", RECORDS, compressor="none")
    flip(path, *(at + 22 for at in chunk_offsets(path)[1:3]))
    source = RecordIOSource(str(path), skip_damaged=True)
    assert source.damaged == 2
    assert source.read(0, source.count) == RECORDS[:5] + RECORDS[15:]


def test_bytes_between_chunks_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "f", RECORDS)
    at = chunk_offsets(path)[2]
    raw = path.read_bytes()
    # Among them a magic number that begins no chunk.
    path.write_bytes(raw[:at] + b"junk" + b"\4\3\2\1" + b"more junk" * 9 + raw[at:])
    source = RecordIOSource(str(path), skip_damaged=True)
    assert source.damaged == 1
    assert source.read(0, source.count) == RECORDS
    with pytest.raises(DataError, match="no chunk begins here") as caught:
        RecordIOSource(str(path))
    assert caught.value.offset == at


def test_a_magic_number_across_read_windows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "f", RECORDS)
    raw = path.read_bytes()
    for junk in range(1, 20):
        monkeypatch.setattr("torch_edl.data.sources.files.recordio._WINDOW", 8)
        path.write_bytes(b"x" * junk + raw)
        assert everything(path, skip_damaged=True) == RECORDS


def python_chunk(count: int, compressor: int, payload: bytes) -> bytes:
    crc = google_crc32c.value(payload)
    return struct.pack("<5I", 0x01020304, count, crc, compressor, len(payload)) + payload


def go_chunk(count: int, compressor: int, payload: bytes, size: int | None = None) -> bytes:
    size = len(payload) if size is None else size
    return struct.pack("<5I", 0x01020304, zlib.crc32(payload), compressor, size, count) + payload


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        # The checksum is right in all of these: what is inside lies.
        (python_chunk(1, 2, b"\xff\xff\xff\xff\x0f" + b"x" * 20), "cannot unpack to 4294967295"),
        (go_chunk(1, 0, b"\xff\xff\xff\xffabc"), "a record of 4294967295 bytes reaches beyond"),
        (go_chunk(2, 0, b"\1\0\0\0a\2\0\0"), "length is cut off"),
        (go_chunk(1, 0, b"\0\0\0\0\0\0\0\0"), "it holds 2 records, its header says 1"),
        (go_chunk(1, 0, b"\0" * 8, size=0x3FFFFFFF), "the file ends before"),
        (go_chunk(1, 0, b"\0" * 8, size=0xFFFFFFFF), "a payload of 4294967295 bytes"),
        (go_chunk(0xFFFFFFFF, 0, b"\0" * 8), "4294967295 records in 8 bytes"),
        (go_chunk(0xFFFFFFFF, 2, b"\0" * 8), "4294967295 records in 8 bytes"),
        (go_chunk(1, 1, b"not snappy"), "cannot be unpacked"),
        (go_chunk(1, 2, b"not gzip"), "cannot be unpacked"),
        (go_chunk(1, 2, bytes.fromhex(GZIP)[:-1]), "cannot be unpacked"),
        (b"\4\3\2\1\0\0", "6 bytes are left, too few for a chunk"),
    ],
)
def test_lengths_that_lie_are_damage_and_allocate_nothing(
    tmp_path: Path, chunk: bytes, message: str
) -> None:
    path = tmp_path / "f"
    good = go_chunk(1, 0, b"\4\0\0\0good")
    tracemalloc.start()
    try:
        # Alone, the first chunk decides the dialect; after a good one it is decided.
        path.write_bytes(chunk)
        with pytest.raises(DataError):
            everything(path)
        if "unpack to" not in message:
            path.write_bytes(good + chunk)
            with pytest.raises(DataError, match=message) as caught:
                everything(path)
            assert caught.value.offset == len(good)
            assert everything(path, skip_damaged=True) == [b"good"]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "f", [b"\0" * (1 << 19)] * 3, compressor="gzip", per_chunk=3)
    assert len(everything(tmp_path / "f")) == 3
    # The writer closes a chunk at 1 MiB: two records of half of it are a little more.
    monkeypatch.setattr("torch_edl.data.sources.files.recordio.MAX_RECORD_BYTES", 1 << 20)
    with pytest.raises(DataError, match="unpacks to more than 1048576 bytes"):
        everything(tmp_path / "f")


def test_a_gzip_payload_of_several_members(tmp_path: Path) -> None:
    member = bytes.fromhex(GZIP)
    (tmp_path / "f").write_bytes(go_chunk(2, 2, member + member))
    assert everything(tmp_path / "f") == [b"hi", b"hi"]
