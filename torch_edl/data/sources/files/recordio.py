"""RecordIO: chunks of records with a header and a checksum; each chunk is compressed as a whole.

Two packages, in Go and in Python, write such files with different headers. In both, a chunk begins
with the magic number and ends with the payload, ``uint32 length + bytes`` per record::

    Go       magic, CRC-32 of the payload, compressor, size of the payload, number of records
    Python   magic, number of records, CRC-32C of the payload, compressor, size of the payload

All are little-endian uint32. Go knows the compressors 0 none, 1 snappy (framed stream), 2 gzip;
Python 1 none, 2 snappy (one raw block), 3 gzip. The scan reads headers only.
"""

from __future__ import annotations

import gzip
import logging
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import cramjam
import google_crc32c

from torch_edl.data.sources.data_file import DataFile, WholeFile
from torch_edl.data.sources.files.blocks import MAX_RECORD_BYTES, BlockSource, Index
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Records

log = logging.getLogger(__name__)

MAGIC = 0x01020304
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_HEADER = struct.Struct("<5I")
_WINDOW = 1 << 20

COMPRESSORS = ("none", "snappy", "gzip")
# Number of the first compressor in each dialect: COMPRESSORS[number - first].
_FIRST_COMPRESSOR = {"go": 0, "python": 1}
DIALECTS = tuple(_FIRST_COMPRESSOR)

# Maximum ratio of all compressors (deflate: 1,032). A header with more records than fit into the
# payload at this ratio is damaged.
_MAX_RATIO = 1100


@dataclass(frozen=True)
class _Header:
    compressor: str
    checksum: int
    size: int
    """Size of the payload in bytes."""
    count: int
    """Number of records."""

    @classmethod
    def parse(cls, dialect: str, raw: bytes) -> _Header | str:
        """Return the header in 20 bytes, or a message if they are not a valid header."""
        magic, *words = _HEADER.unpack(raw)
        if magic != MAGIC:
            return f"no chunk begins here: {magic:#010x} is not the magic number {MAGIC:#010x}"
        if dialect == "go":
            checksum, number, size, count = words
        else:
            count, checksum, number, size = words
        number -= _FIRST_COMPRESSOR[dialect]
        if not 0 <= number < len(COMPRESSORS):
            return f"the chunk's header is damaged: unknown compressor {number}"
        if size > MAX_RECORD_BYTES:
            return f"the chunk's header is damaged: a payload of {size} bytes"
        if 4 * count > size * (_MAX_RATIO if number else 1):
            return f"the chunk's header is damaged: {count} records in {size} bytes"
        return cls(COMPRESSORS[number], checksum, size, count)

    def pack(self, dialect: str) -> bytes:
        number = COMPRESSORS.index(self.compressor) + _FIRST_COMPRESSOR[dialect]
        if dialect == "go":
            return _HEADER.pack(MAGIC, self.checksum, number, self.size, self.count)
        return _HEADER.pack(MAGIC, self.count, self.checksum, number, self.size)


class RecordIOSource(BlockSource):
    """The records of a RecordIO file of either dialect."""

    kind = "recordio"

    def scan(self, file: DataFile) -> Index:
        return _scan_skipping(file) if self.skip_damaged else _scan(file)

    def prepare(self, details: dict[str, Any]) -> None:
        self.dialect = str(details.get("dialect", "go"))
        """Layout of the headers: ``go`` or ``python``."""

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        return _read_chunk(file, offset, self.dialect)[1]


def _header_at(file: DataFile, offset: int, dialect: str) -> _Header:
    left = file.size - offset
    if left < _HEADER.size:
        raise DataError(file.path, f"{left} bytes are left, too few for a chunk", offset)
    header = _Header.parse(dialect, file.read_at(offset, _HEADER.size))
    if isinstance(header, str):
        raise DataError(file.path, header, offset)
    if header.size > left - _HEADER.size:
        raise DataError(
            file.path,
            f"the chunk needs {header.size} bytes after its header, the file ends before",
            offset,
        )
    return header


def _read_chunk(file: DataFile, offset: int, dialect: str) -> tuple[_Header, list[bytes]]:
    """Return header and records of a chunk, after verifying its checksum."""
    header = _header_at(file, offset, dialect)
    payload = file.read_at(offset + _HEADER.size, header.size)
    # Early versions of the Python package wrote CRC-32 instead of CRC-32C.
    if header.checksum != zlib.crc32(payload) and (
        dialect == "go" or header.checksum != google_crc32c.value(payload)
    ):
        raise DataError(file.path, "the chunk's checksum does not match its payload", offset)
    try:
        records = _split(_decompress(payload, header.compressor, dialect), header.count)
    except (ValueError, zlib.error, cramjam.DecompressionError) as error:
        raise DataError(file.path, f"the chunk cannot be unpacked: {error}", offset) from error
    return header, records


def _decompress(payload: bytes, compressor: str, dialect: str) -> bytes:
    if compressor == "none":
        return payload
    if compressor == "gzip":
        return _gunzip(payload)
    if dialect == "go":
        return bytes(cramjam.snappy.decompress(payload))
    size = cramjam.snappy.decompress_raw_len(payload)
    if size > min(MAX_RECORD_BYTES, _MAX_RATIO * len(payload)):
        raise ValueError(f"{len(payload)} bytes cannot unpack to {size}")
    return bytes(cramjam.snappy.decompress_raw(payload))


def _gunzip(payload: bytes) -> bytes:
    """Decompress all members of a gzip stream, up to a limit. The gzip module is not used, since
    its ``read(n)`` allocates ``n`` bytes first."""
    parts: list[bytes] = []
    left = MAX_RECORD_BYTES + 1
    while payload:
        member = zlib.decompressobj(wbits=31)
        parts.append(member.decompress(payload, left))
        left -= len(parts[-1])
        if left <= 0:
            raise ValueError(f"unpacks to more than {MAX_RECORD_BYTES} bytes")
        if not member.eof:
            raise ValueError("the gzip stream is cut off")
        payload = member.unused_data
    return b"".join(parts)


def _split(data: bytes, count: int) -> list[bytes]:
    """Split ``uint32 length + bytes`` into records; raise ValueError unless there are ``count``."""
    records = []
    place = 0
    size = len(data)
    length_at = struct.Struct("<I").unpack_from
    while place < size:
        if place + 4 > size:
            raise ValueError("a record's length is cut off")
        (length,) = length_at(data, place)
        place += 4 + length
        if place > size:
            raise ValueError(f"a record of {length} bytes reaches beyond the chunk")
        records.append(data[place - length : place])
    if len(records) != count:
        raise ValueError(f"it holds {len(records)} records, its header says {count}")
    return records


def _scan(file: DataFile) -> Index:
    """Read all headers, and the first chunk to detect the dialect."""
    if file.size == 0:
        return Index.of([])
    dialect = _dialect_at(file, 0)
    if dialect is None:
        # Neither dialect fits; the chunk is read in the likelier one for its error message.
        header = _Header.parse("go", file.read_at(0, min(_HEADER.size, file.size)).ljust(20))
        dialect = "python" if isinstance(header, str) else "go"
        _read_chunk(file, 0, dialect)
        raise DataError(file.path, "the first chunk is damaged", 0)
    blocks = []
    offset = 0
    while offset < file.size:
        header = _header_at(file, offset, dialect)
        length = _HEADER.size + header.size
        blocks.append((offset, length, header.count))
        offset += length
    return Index.of(blocks, dialect=dialect)


def _scan_skipping(file: DataFile) -> Index:
    """Verify every chunk, leave out damaged ones and count them. A region without a valid header
    counts as one damaged chunk."""
    dialect: str | None = None
    blocks = []
    damaged = 0
    offset = 0
    lost = False
    while offset < file.size:
        dialect = dialect or _dialect_at(file, offset)
        try:
            header, _ = _read_chunk(file, offset, dialect or "go")
        except DataError as error:
            if not lost:
                log.warning("left out: %s", error)
                damaged += 1
            end = _end_of_chunk(file, offset, dialect or "go")
            lost = end is None
            offset = _next_magic(file, offset + 1) if end is None else end
            continue
        lost = False
        length = _HEADER.size + header.size
        blocks.append((offset, length, header.count))
        offset += length
    return Index.of(blocks, damaged, dialect=dialect or "go")


def _end_of_chunk(file: DataFile, offset: int, dialect: str) -> int | None:
    """Return the end of the chunk at ``offset`` if its header is valid and the end is followed by
    another chunk or the end of the file; None otherwise."""
    try:
        end = offset + _HEADER.size + _header_at(file, offset, dialect).size
    except DataError:
        return None
    follows = file.read_at(end, min(len(_MAGIC_BYTES), file.size - end))
    return end if follows in (b"", _MAGIC_BYTES) else None


def _dialect_at(file: DataFile, offset: int) -> str | None:
    for dialect in DIALECTS:
        try:
            _read_chunk(file, offset, dialect)
        except DataError:
            continue
        return dialect
    return None


def _next_magic(file: DataFile, offset: int) -> int:
    while offset < file.size:
        window = file.read_at(offset, min(_WINDOW, file.size - offset))
        found = window.find(_MAGIC_BYTES)
        if found >= 0:
            return offset + found
        if offset + len(window) == file.size:
            break
        offset += len(window) - len(_MAGIC_BYTES) + 1
    return file.size


class RecordIOWriter(WholeFile):
    """Writes a RecordIO file in a ``with`` block; the file appears atomically at its end.

    ::

        with RecordIOWriter("train.recordio") as writer:
            writer.write(b"a record")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dialect: str = "go",
        compressor: str = "snappy",
        records_per_chunk: int = 1024,
        bytes_per_chunk: int = 1 << 20,
    ) -> None:
        """Open a temporary file beside ``path``.

        Args:
            dialect: ``go`` or ``python``.
            compressor: ``none``, ``snappy`` or ``gzip``.
            records_per_chunk: number of records after which a chunk ends.
            bytes_per_chunk: size of the records after which a chunk ends.

        Raises:
            UsageError: an argument is invalid.
        """
        if dialect not in DIALECTS:
            raise UsageError(f"RecordIO dialect {dialect!r}: choose go or python")
        if compressor not in COMPRESSORS:
            raise UsageError(f"compressor {compressor!r}: choose one of {', '.join(COMPRESSORS)}")
        if records_per_chunk < 1 or bytes_per_chunk < 1:
            raise UsageError(
                f"chunks of {records_per_chunk} records, {bytes_per_chunk} bytes: both must be >= 1"
            )
        super().__init__(path)
        self._dialect = dialect
        self._compressor = compressor
        self._records_per_chunk = records_per_chunk
        self._bytes_per_chunk = bytes_per_chunk
        self._parts: list[bytes] = []
        self._bytes = 0

    def write(self, record: bytes) -> None:
        """Add a record.

        Raises:
            UsageError: the record has 512 MiB or more.
        """
        if len(record) >= MAX_RECORD_BYTES // 2:
            raise UsageError(f"a record of {len(record)} bytes: records must be below 512 MiB")
        self._parts.append(struct.pack("<I", len(record)) + record)
        self._bytes += len(record)
        if len(self._parts) >= self._records_per_chunk or self._bytes >= self._bytes_per_chunk:
            self._finish()

    def _finish(self) -> None:
        if not self._parts:
            return
        payload = _compress(b"".join(self._parts), self._compressor, self._dialect)
        crc = zlib.crc32(payload) if self._dialect == "go" else google_crc32c.value(payload)
        header = _Header(self._compressor, crc, len(payload), len(self._parts))
        self._file.write(header.pack(self._dialect) + payload)
        self._parts = []
        self._bytes = 0


def _compress(data: bytes, compressor: str, dialect: str) -> bytes:
    if compressor == "none":
        return data
    if compressor == "gzip":
        return gzip.compress(data, mtime=0)  # equal records give equal bytes
    if dialect == "go":
        return bytes(cramjam.snappy.compress(data))
    return bytes(cramjam.snappy.compress_raw(data))
