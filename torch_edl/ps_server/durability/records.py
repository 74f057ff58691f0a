"""The records of a log as bytes. Pure: no files, no clock.

A record is a head and a payload. The head has its own checksum, so that a reader trusts a length
before it reads what the length says::

    sequence   u64   counts the records of a log from 1
    length     u32   bytes of the payload
    kind       u8    see Kind; one byte of padding follows
    frames     u16   number of frames in the payload
    payload    u32   CRC-32 of the payload
    head       u32   CRC-32 of the bytes before

The payload is a message and its frames as they were received: the length of each frame (u32), the
message, and the frames.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from isal.isal_zlib import crc32

from torch_edl.errors import UsageError

_FIELDS = struct.Struct("<QIBxHI")
_CRC = struct.Struct("<I")
HEAD_BYTES = _FIELDS.size + _CRC.size
_LONGEST_PAYLOAD = (1 << 32) - 1
_SMALL_BYTES = 16 << 10
"""Smaller parts of a payload are joined: ZeroMQ may have received a small frame into a buffer of
8 KB, which the frame would keep alive until the record is sent."""

Piece = bytes | memoryview


class Kind(enum.IntEnum):
    """The kind of change, with the message of its record."""

    DENSE = 1
    """PushDenseParametersRequest"""
    TABLES = 2
    """PushEmbeddingTableInfosRequest"""
    GRADIENTS = 3
    """PushGradientsRequest"""
    FLUSH = 4
    """FlushRequest"""
    CUT = 5
    """Watermarks: in sync mode they determine which pushes are applied."""
    EVICTION = 6
    """TableIds: the rows that a table removed."""
    REPAIR = 7
    """LostRecords: number of unreadable records that were left out."""


@dataclass(frozen=True)
class LogEntry:
    """An entry to append. Its checksum is computed before any lock is taken."""

    kind: int
    pieces: tuple[Piece, ...]
    """The payload, in pieces."""
    frames: int
    """Number of frames in the payload."""
    crc: int
    """CRC-32 of the payload."""

    @classmethod
    def of(cls, kind: int, message: Piece, frames: Sequence[Piece] = ()) -> LogEntry:
        """Return an entry with the checksum of its payload. The frames must not change afterwards.

        Raises:
            UsageError: the change is too large for a record.
        """
        lengths = b"".join(_CRC.pack(len(frame)) for frame in frames)
        pieces = tuple(_merged((lengths, message, *frames)))
        if sum(map(len, pieces)) > _LONGEST_PAYLOAD:
            raise UsageError(f"a change of more than {_LONGEST_PAYLOAD} bytes: use more --ps")
        return cls(kind, pieces, len(frames), _checksum(pieces))

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True)
class Record:
    """An entry with its sequence number, as read from a log."""

    sequence: int
    kind: int
    payload: Piece
    frames: int = 0
    """Number of frames in the payload."""

    def packed(self) -> bytes:
        """Return the record as it is stored in a segment."""
        entry = LogEntry(self.kind, (self.payload,), self.frames, crc32(self.payload))
        return pack(self.sequence, entry)

    def parts(self) -> tuple[bytes, list[memoryview]]:
        """Return the encoded message, and the frames as views of the payload.

        Raises:
            UsageError: the lengths of the frames do not fit the payload.
        """
        whole, at = memoryview(self.payload), _CRC.size * self.frames
        lengths = [length for (length,) in _CRC.iter_unpack(whole[:at])]
        begin = len(whole) - sum(lengths)
        if len(lengths) < self.frames or begin < at:
            raise UsageError(f"record {self.sequence}: its frames are longer than the record")
        frames = []
        message = bytes(whole[at:begin])
        for length in lengths:
            frames.append(whole[begin : begin + length])
            begin += length
        return message, frames


def _merged(parts: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the parts; small parts that follow each other are joined."""
    small: list[Piece] = []
    for part in filter(len, parts):
        if len(part) < _SMALL_BYTES:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def _checksum(pieces: Iterable[Piece]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc


def pack(sequence: int, entry: LogEntry) -> bytes:
    """Return an entry with that number as it is stored in a segment."""
    return b"".join((pack_head(sequence, entry), *entry.pieces))


def unpack(pieces: Iterable[Piece]) -> Iterator[tuple[int, LogEntry]]:
    """Yield the number and the entry of each received record. The payloads are views of the pieces.

    Args:
        pieces: whole records, cut anywhere but in a head.

    Raises:
        UsageError: the bytes are not records.
    """
    rest = iter(pieces)
    for content in rest:
        piece, at = memoryview(content), 0
        while at < len(piece):
            head = unpack_head(piece[at : at + HEAD_BYTES])
            if head is None:
                raise UsageError(f"records: byte {at} of {len(piece)} begins no record")
            at += HEAD_BYTES
            payload: list[Piece] = []
            missing = head.length
            while missing:
                if at == len(piece):
                    piece, at = memoryview(next(rest, b"")), 0
                part = piece[at : at + missing]
                if not part:
                    raise UsageError(f"records: record {head.sequence} is cut off")
                payload.append(part)
                missing -= len(part)
                at += len(part)
            if _checksum(payload) != head.crc:
                raise UsageError(f"records: record {head.sequence} does not match its checksum")
            yield head.sequence, LogEntry(head.kind, tuple(payload), head.frames, head.crc)


def read(pieces: Iterable[Piece]) -> Iterator[Record]:
    """Yield each received record; see :func:`unpack`."""
    for sequence, entry in unpack(pieces):
        payload = entry.pieces[0] if len(entry.pieces) == 1 else b"".join(entry.pieces)
        yield Record(sequence, entry.kind, payload, entry.frames)


def last(content: Piece) -> int:
    """Return the number of the last record in a message; raise UsageError if it holds no
    records."""
    number = at = 0
    while at < len(content):
        head = unpack_head(content[at : at + HEAD_BYTES])
        if head is None:
            raise UsageError(f"records: byte {at} of {len(content)} begins no record")
        number = head.sequence
        at += HEAD_BYTES + head.length
    return number


@dataclass(frozen=True)
class Head:
    """The head of a record, which describes its payload."""

    sequence: int
    length: int
    """Bytes of the payload."""
    kind: int
    frames: int
    """Number of frames in the payload."""
    crc: int
    """CRC-32 of the payload."""


def pack_head(sequence: int, entry: LogEntry) -> bytes:
    """Return the head of the record with that number, HEAD_BYTES long."""
    fields = _FIELDS.pack(sequence, entry.size, entry.kind, entry.frames, entry.crc)
    return fields + _CRC.pack(crc32(fields))


def unpack_head(content: Piece) -> Head | None:
    """Return the head in ``content``; None if it is too short or its checksum does not match."""
    if len(content) < HEAD_BYTES:
        return None
    if crc32(content[: _FIELDS.size]) != _CRC.unpack_from(content, _FIELDS.size)[0]:
        return None
    return Head(*_FIELDS.unpack_from(content))
