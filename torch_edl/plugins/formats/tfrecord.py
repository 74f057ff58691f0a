"""TFRecord: ``uint64 length, masked crc32c of it, data, masked crc32c of the data``, repeated.

A block consists of about a quarter of a megabyte of records. The scan verifies the checksums of the
lengths. The checksums of the data are verified when a block is read, and in the scan with
``skip_damaged``.
"""

from __future__ import annotations

import logging
import struct

import google_crc32c

from torch_edl.data.sources.data_file import DataFile, WholeFile
from torch_edl.data.sources.files.blocks import MAX_RECORD_BYTES, BlockSource, Gathered, Index
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Records

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
HEADER_BYTES = 12
_FOOTER_BYTES = 4

_BAD_DATA = "the record's checksum does not match its data"


def _masked(data: bytes) -> int:
    """Return the masked CRC-32C of TFRecord: rotated, plus a constant, since the CRC of data that
    contains its own CRC is not reliable."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_tfrecord(head: bytes) -> bool:
    """Return True for a file that starts with a record."""
    return is_header(head[:HEADER_BYTES])


def is_header(raw: bytes) -> bool:
    """Return True if 12 bytes are the start of a record: a length with a valid checksum."""
    return len(raw) == HEADER_BYTES and _is_good(raw[:8], raw[8:])


class TFRecordSource(BlockSource):
    """The records of a TFRecord file that is not compressed.

    With ``skip_damaged``, a damaged record is left out; at a damaged length, the rest of the file
    is left out.
    """

    kind = "tfrecord"
    block_bytes = 256 << 10

    def scan(self, file: DataFile) -> Index:
        head = file.read_at(0, min(HEADER_BYTES, file.size))
        if head.startswith(b"\x1f\x8b\x08") and not is_header(head):
            raise DataError(file.path, "is compressed and cannot be read by index; gunzip it first")
        gathered = Gathered(self.block_bytes)
        damaged = offset = 0
        while offset < file.size:
            try:
                header = file.read_at(offset, min(HEADER_BYTES, file.size - offset))
                size = _length_of(file.path, header, offset)
                end = offset + HEADER_BYTES + size + _FOOTER_BYTES
                if end > file.size:
                    raise DataError(
                        file.path, f"a record of {size} bytes, the file ends before", offset
                    )
            except DataError as error:
                if not self.skip_damaged:
                    raise
                log.warning("left out, with what follows: %s", error)
                damaged += 1
                break
            if self.skip_damaged and not _is_good(
                file.read_at(offset + HEADER_BYTES, size), file.read_at(end - _FOOTER_BYTES, 4)
            ):
                log.warning("left out: %s at byte %d: %s", file.path, offset, _BAD_DATA)
                damaged += 1
            else:
                gathered.add(offset, end)
            offset = end
        return gathered.index(damaged)

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        data = file.read_at(offset, length)
        records: list[bytes] = []
        place = 0
        while place < length:
            size = _length_of(file.path, data[place : place + HEADER_BYTES], offset + place)
            end = place + HEADER_BYTES + size
            record = data[place + HEADER_BYTES : end]
            if end + _FOOTER_BYTES > length or not _is_good(record, data[end : end + 4]):
                raise DataError(file.path, _BAD_DATA, offset + place)
            records.append(record)
            place = end + _FOOTER_BYTES
        return records


def _is_good(record: bytes, stored: bytes) -> bool:
    return _CRC.pack(_masked(record)) == stored


def _length_of(path: str, header: bytes, offset: int) -> int:
    """Return the size of a record's data in bytes; raise DataError if its header is damaged."""
    if len(header) < HEADER_BYTES:
        raise DataError(path, "the file ends within a record's header", offset)
    if not is_header(header):
        raise DataError(path, "the checksum of the record's length does not match it", offset)
    (size,) = _LENGTH.unpack_from(header)
    if size > MAX_RECORD_BYTES:
        raise DataError(path, f"a record of {size} bytes, {MAX_RECORD_BYTES} is the limit", offset)
    return int(size)


class TFRecordWriter(WholeFile):
    """Writes a TFRecord file in a ``with`` block; the file appears atomically at its end.

    ::

        with TFRecordWriter("train.tfrecord") as writer:
            writer.write(b"a record")
    """

    def write(self, record: bytes) -> None:
        """Add a record.

        Raises:
            UsageError: the record is longer than 1 GiB.
        """
        if len(record) > MAX_RECORD_BYTES:
            raise UsageError(f"a record of {len(record)} bytes: records may have up to 1 GiB")
        length = _LENGTH.pack(len(record))
        self._file.write(
            b"".join((length, _CRC.pack(_masked(length)), record, _CRC.pack(_masked(record))))
        )
