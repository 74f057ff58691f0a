"""The records of a journal as bytes. Pure: no files, no clock.

A record is a head and a payload. The head has its own checksum, so that a reader trusts a length
before it reads what the length says::

    sequence   u64   counts the records of a journal from 1
    length     u32   bytes of the payload
    kind       u8    see Kind; three bytes of padding follow
    payload    u32   CRC-32 of the payload
    head       u32   CRC-32 of the bytes before
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from isal.isal_zlib import crc32

from torch_edl.errors import UsageError

_FIELDS = struct.Struct("<QIB3xI")
_CRC = struct.Struct("<I")
HEAD_BYTES = _FIELDS.size + _CRC.size
_BATCH_BYTES, _BATCH_PIECES = 32 << 20, 1024
LONGEST_PAYLOAD = (1 << 32) - 1


Piece = bytes | memoryview


class Kind(enum.IntEnum):
    """The kind of change. The payload is the serialized request, except for EVICTION and REPAIR."""

    DENSE = 1
    """PushDenseParametersRequest"""
    TABLES = 2
    """PushEmbeddingTableInfosRequest"""
    GRADIENTS = 3
    """PushGradientsRequest"""
    FLUSH = 4
    """FlushRequest"""
    CUT = 5
    """SnapshotRequest: in sync mode its targets determine which pushes are applied."""
    EVICTION = 6
    """TableIds: the rows that a table removed."""
    REPAIR = 7
    """LostRecords: number of unreadable records that were left out."""


@dataclass(frozen=True)
class LogEntry:
    """An entry to append. Its checksum is computed before any lock is taken."""

    kind: int
    payload: Piece
    crc: int
    """CRC-32 of the payload."""

    @classmethod
    def of(cls, kind: int, payload: Piece) -> LogEntry:
        """Return an entry with the checksum of its payload."""
        return cls(kind, payload, crc32(payload))


@dataclass(frozen=True)
class Record:
    """An entry with its sequence number."""

    sequence: int
    kind: int
    payload: bytes


class Sink(Protocol):
    """The log to which a shard appends each change before it is made: a journal on a disk, or a
    peer."""

    @property
    def is_slow(self) -> bool:
        """True if :meth:`wait_durable` waits for a disk or a peer."""

    def append(self, entry: LogEntry) -> int:
        """Append an entry, in the order of the calls. Returns the sequence number of the record.

        Raises:
            OSError: nothing was appended, and the change must not be made. The call may be
                repeated.
        """

    def wait_durable(self, sequence: int) -> None:
        """Wait until the record, and all before it, survive the loss of this process; only then is
        a change acknowledged.

        Raises:
            StaleIncarnationError: another process has taken over the shard; it decides whether the
                change was made.
            OSError: the sink failed permanently.
        """


def pack(record: Record) -> bytes:
    """Return a record as it is stored in a segment."""
    entry = LogEntry.of(record.kind, record.payload)
    return b"".join((pack_head(record.sequence, entry), entry.payload))


def batch(kept: Iterable[tuple[int, LogEntry]], after: int, until: int) -> list[memoryview]:
    """Return records with numbers in ``(after, until]`` as they are stored in a segment, two pieces
    each; limited in size, so the last ones may be missing.

    Args:
        kept: numbers and entries, in order.
    """
    pieces: list[memoryview] = []
    size = 0
    for number, entry in kept:
        if number <= after:
            continue
        if number > until or len(pieces) >= _BATCH_PIECES:
            break
        if size and size + len(entry.payload) > _BATCH_BYTES:
            break
        pieces += (memoryview(pack_head(number, entry)), memoryview(entry.payload))
        size += len(entry.payload)
    return pieces


def unpack(pieces: Iterable[Piece]) -> Iterator[tuple[int, LogEntry]]:
    """Yield the number and the entry of each received record. The payloads are views of the pieces.

    Args:
        pieces: whole records; the payload of the last one of a piece may be a piece of its own.

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
            if head.length and at == len(piece):
                piece, at = memoryview(next(rest, b"")), 0
            payload = piece[at : at + head.length]
            if len(payload) < head.length or crc32(payload) != head.crc:
                raise UsageError(f"records: record {head.sequence} does not match its checksum")
            at += head.length
            yield head.sequence, LogEntry(head.kind, payload, head.crc)


def last(content: Piece) -> int:
    """Return the number of the last record in a message.

    Raises:
        UsageError: the bytes are not records.
    """
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
    crc: int
    """CRC-32 of the payload."""


def pack_head(sequence: int, entry: LogEntry) -> bytes:
    """Return the head of the record with that number, HEAD_BYTES long."""
    fields = _FIELDS.pack(sequence, len(entry.payload), entry.kind, entry.crc)
    return fields + _CRC.pack(crc32(fields))


def unpack_head(content: Piece) -> Head | None:
    """Return the head in ``content``; None if it is too short or its checksum does not match."""
    if len(content) < HEAD_BYTES:
        return None
    if crc32(content[: _FIELDS.size]) != _CRC.unpack_from(content, _FIELDS.size)[0]:
        return None
    sequence, length, kind, crc = _FIELDS.unpack_from(content)
    return Head(sequence, length, kind, crc)
