"""TFRecord: golden bytes, and what damage looks like."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import google_crc32c
import pytest

from torch_edl.errors import DataError
from torch_edl.plugins.formats.tfrecord import TFRecordSource, TFRecordWriter, is_header

# Length and its masked CRC-32C, data and its own: "hi", then an empty record.
GOLDEN = bytes.fromhex("0200000000000000 78270b34 6869 13d608560000000000000000 29039807 d8ea82a2")
RECORDS = [b"record %d" % i for i in range(30)]
EACH = [16 + len(record) for record in RECORDS]


def write(path: Path, records: list[bytes]) -> Path:
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty records in several blocks."""
    monkeypatch.setattr(TFRecordSource, "block_bytes", 100)
    return write(tmp_path / "f.tfrecord", RECORDS)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


def everything(path: Path, *, skip_damaged: bool = False) -> list[bytes]:
    source = TFRecordSource(str(path), skip_damaged=skip_damaged)
    records = source.read(0, source.count)
    assert isinstance(records, list)
    return records


def test_golden_bytes(tmp_path: Path) -> None:
    path = tmp_path / "golden"
    path.write_bytes(GOLDEN)
    assert everything(path) == [b"hi", b""]
    assert write(tmp_path / "again", [b"hi", b""]).read_bytes() == GOLDEN
    assert is_header(GOLDEN[:12])
    assert not is_header(GOLDEN[1:13])
    assert not is_header(GOLDEN[:11])


def test_records_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TFRecordSource, "block_bytes", 100)
    records = [bytes([i]) * (i * 37 % 300) for i in range(50)]
    path = write(tmp_path / "f", records)
    for skip in (False, True):
        assert everything(path, skip_damaged=skip) == records


def test_damaged_data_is_found_when_read_and_left_out_alone(file: Path) -> None:
    at = sum(EACH[:12])
    flip(file, at + 12)
    source = TFRecordSource(str(file))
    assert source.count == 30
    assert source.read(20, 30) == RECORDS[20:]
    with pytest.raises(DataError, match="checksum does not match its data") as caught:
        source.read(12, 13)
    assert (caught.value.path, caught.value.offset) == (str(file), at)
    skipping = TFRecordSource(str(file), skip_damaged=True)
    assert (skipping.count, skipping.damaged) == (29, 1)
    rest = RECORDS[:12] + RECORDS[13:]
    for start in range(30):
        assert skipping.read(start, 29) == rest[start:]


@pytest.mark.parametrize("byte", [0, 7, 8, 11])
def test_a_damaged_length_ends_the_file(file: Path, byte: int) -> None:
    at = sum(EACH[:12])
    flip(file, at + byte)
    with pytest.raises(DataError, match="checksum of the record's length") as caught:
        TFRecordSource(str(file))
    assert caught.value.offset == at
    source = TFRecordSource(str(file), skip_damaged=True)
    assert (source.count, source.damaged) == (12, 1)
    assert source.read(0, 12) == RECORDS[:12]


@pytest.mark.parametrize("cut", [1, 4, 5, 20, 24])
def test_a_file_that_was_cut(file: Path, cut: int) -> None:
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(DataError, match="the file ends") as caught:
        TFRecordSource(str(file))
    assert caught.value.offset == sum(EACH[:-1])
    assert everything(file, skip_damaged=True) == RECORDS[:-1]


@pytest.mark.parametrize("size", [1 << 29, 1 << 31, (1 << 64) - 1])
def test_a_length_that_lies_allocates_nothing(tmp_path: Path, size: int) -> None:
    length = struct.pack("<Q", size)
    crc = google_crc32c.value(length)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    path = tmp_path / "f"
    path.write_bytes(GOLDEN + length + struct.pack("<I", masked) + b"x" * 100)
    with pytest.raises(DataError, match=f"a record of {size} bytes") as caught:
        TFRecordSource(str(path))
    assert caught.value.offset == len(GOLDEN)
    assert everything(path, skip_damaged=True) == [b"hi", b""]


def test_compressed_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(GOLDEN))
    with pytest.raises(DataError, match=r"is compressed .* gunzip it first"):
        TFRecordSource(str(path))
    # A record whose length begins with the same bytes is none.
    record = b"x" * 0x088B1F
    write(path, [record])
    assert path.read_bytes()[:3] == b"\x1f\x8b\x08"
    assert everything(path) == [record]
