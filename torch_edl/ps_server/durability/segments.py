"""The files of a journal. A segment is a header that identifies the journal, and records.

``00000000000000000001-3.log`` was begun by the server of incarnation 3 and holds the records from
number 1 on. The records of a segment end where the next segment of the same server begins, or where
a later server has begun: later records of an earlier server were never acknowledged.

The death of a process leaves an incomplete last record, and a loss of power may leave sectors of
zeros. Such a tail is cut. Any other mismatch is damage; the records behind it are found by their
heads, for users who choose to skip the damaged ones.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal.isal_zlib import crc32

from torch_edl.errors import JournalDamagedError
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.log import Damage
from torch_edl.ps_server.durability.records import (
    HEAD_BYTES,
    Head,
    LogEntry,
    Piece,
    Record,
    pack_head,
    unpack_head,
)

_MAGIC = b"EDLJRNL\n"
_LENGTHS = struct.Struct("<II")  # bytes of the description, and its CRC-32
_NAME = re.compile(r"(\d{20})-(\d+)\.log")
_SECTOR = 512
_SEARCHED = 16 << 20  # bytes searched at a time
_LONGEST_DESCRIPTION = 1 << 16
_MOST_PIECES = os.sysconf("SC_IOV_MAX")


@dataclass(frozen=True)
class Segment:
    """A file of records."""

    path: Path
    first: int
    """Sequence number of its first record."""
    incarnation: int
    """Incarnation of the server that wrote it."""
    end: int | None = None
    """Sequence number from which records are in later segments; None for the last segment."""

    @classmethod
    def named(cls, folder: Path, first: int, incarnation: int) -> Segment:
        """Return the segment with that first record."""
        return cls(folder / f"{first:020d}-{incarnation}.log", first, incarnation)


def chain(folder: Path, after: int = 0) -> tuple[list[Segment], list[Segment]]:
    """Return the segments with the records after number ``after``, in order, and those that can be
    deleted: covered, or superseded by a later server."""
    found = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            found.append(Segment(path, int(match[1]), int(match[2])))
    found.sort(key=lambda s: (s.incarnation, s.first))
    used: list[Segment] = []
    useless: list[Segment] = []
    end: int | None = None
    for segment in reversed(found):
        if end is not None and (segment.first >= end or end <= after + 1):
            useless.append(segment)
            continue
        used.append(replace(segment, end=end))
        end = segment.first
    return used[::-1], useless


def header(identity: JournalIdentity) -> bytes:
    """Return the header of a segment."""
    text = identity.to_json().encode()
    return _MAGIC + _LENGTHS.pack(len(text), crc32(text)) + text


def read(
    segments: Sequence[Segment],
    identity: JournalIdentity,
    after: int = 0,
    damage: Damage | None = None,
) -> Iterator[Record]:
    """Yield the records after number ``after`` of a chain. A torn tail of the last segment is
    ignored.

    Args:
        damage: collects unreadable records, and reading continues; None makes them an error.

    Raises:
        JournalDamagedError: a record before the tail is damaged or missing; the message names it.
        UsageError: a segment is of another journal.
    """
    expected = after + 1
    for segment in segments:
        if segment.first > expected:
            _report(_missing(segment.path.parent, expected, segment.first - 1), damage)
        for record, _ in read_segment(segment, identity, damage):
            if record.sequence >= expected:
                if damage is not None:
                    damage.passed(record.sequence - expected)
                expected = record.sequence + 1
                yield record
    if damage is not None and segments and segments[-1].first > expected:
        damage.at_end += segments[-1].first - expected


def read_segment(
    segment: Segment, identity: JournalIdentity, damage: Damage | None = None
) -> Iterator[tuple[Record, int]]:
    """Yield the records of a segment, each with the byte at which it ends; see :func:`read`."""
    with open(segment.path, "rb", buffering=1 << 20) as file:
        size = os.fstat(file.fileno()).st_size
        sequence: int | None = segment.first
        try:
            if not _read_header(file, size, segment, identity):
                return
        except JournalDamagedError as error:
            _report(error, damage)
            sequence = _find_intact(file, 0, size, segment, segment.first)
        while sequence is not None and (segment.end is None or sequence < segment.end):
            begin = file.tell()
            try:
                record = _read_record(file, size, segment, sequence)
            except JournalDamagedError as error:
                _report(error, damage)
                sequence = _find_intact(file, begin, size, segment, sequence)
                continue
            if record is None:
                return
            yield record, file.tell()
            sequence += 1
    if sequence is None and segment.end is None and damage is not None:
        damage.at_end += 1


def _report(error: JournalDamagedError, damage: Damage | None) -> None:
    if damage is None:
        raise error
    damage.note(error)


def _find_intact(file: BinaryIO, begin: int, size: int, segment: Segment, least: int) -> int | None:
    """Move to the next readable record, from number ``least`` on, and return its number; None if
    the segment has none."""
    for at, head in _heads(file, begin, size, least - 1):
        if segment.end is None or head.sequence < segment.end:
            file.seek(at + HEAD_BYTES)
            payload = file.read(head.length)
            if len(payload) == head.length and crc32(payload) == head.crc:
                file.seek(at)
                return head.sequence
    return None


def _read_header(file: BinaryIO, size: int, segment: Segment, identity: JournalIdentity) -> bool:
    """Return False if the writer died before the whole header was on the disk."""
    expected = header(identity)
    content = file.read(len(expected))
    if content == expected:
        return True
    if segment.end is None and expected.startswith(content):
        return False
    _require_header(file, segment, identity)
    if segment.end is None and _is_torn(file, 0, size, segment.first - 1):
        return False
    raise _damaged(segment, segment.first, 0, "the header of the segment does not match")


def _require_header(file: BinaryIO, segment: Segment, identity: JournalIdentity) -> None:
    """Raise UsageError if the header is valid, but of another journal."""
    file.seek(0)
    start = file.read(len(_MAGIC) + _LENGTHS.size)
    if not start.startswith(_MAGIC) or len(start) < len(_MAGIC) + _LENGTHS.size:
        return
    length, crc = _LENGTHS.unpack_from(start, len(_MAGIC))
    text = file.read(min(length, _LONGEST_DESCRIPTION))
    if crc32(text) == crc:
        try:
            identity.require(text, segment.path)
        except (KeyError, TypeError) as error:
            raise _damaged(segment, segment.first, 0, f"its header: {error}") from None


def _read_record(file: BinaryIO, size: int, segment: Segment, sequence: int) -> Record | None:
    """Return the record at this position; None at the end of the file or at a torn record."""
    begin = file.tell()
    content = file.read(HEAD_BYTES)
    head = unpack_head(content)
    cut = len(content) < HEAD_BYTES
    if cut:
        why = "the file ends before it"
    elif head is None:
        why = "its head does not match its checksum"
    elif head.sequence != sequence:
        why = f"record {head.sequence} is in its place"
    elif size - file.tell() < head.length:
        cut, why = True, "the file ends before its end"
    else:
        payload = file.read(head.length)
        if crc32(payload) == head.crc:
            return Record(sequence, head.kind, payload, head.frames)
        why = "its content does not match its checksum"
    if segment.end is None and (cut or _is_torn(file, begin, size, sequence)):
        return None
    raise _damaged(segment, sequence, begin, why)


def _is_torn(file: BinaryIO, begin: int, size: int, sequence: int) -> bool:
    """Return whether the bytes from ``begin`` on are the result of a loss of power. The length of a
    file may reach the disk before its content, which follows in sectors: then there are sectors of
    zeros, and no complete record with a number above ``sequence``."""
    if next(_heads(file, begin, size, sequence), None) is not None:
        return False
    for at, content in _pieces(file, begin, size):
        sectors = np.frombuffer(content, np.uint8)[-at % _SECTOR :]
        sectors = sectors[: len(sectors) // _SECTOR * _SECTOR].reshape(-1, _SECTOR)
        if not sectors.any(axis=1).all():
            return True
    return False


def _pieces(file: BinaryIO, begin: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the content from ``begin`` on in pieces up to whole sectors, each with its position."""
    at = begin
    while at < size:
        file.seek(at)
        content = file.read(_SEARCHED - at % _SECTOR)
        if not content:
            return
        yield at, content
        at += len(content)


def _heads(file: BinaryIO, begin: int, size: int, above: int) -> Iterator[tuple[int, Head]]:
    """Yield the heads of records with a number above ``above``, at any byte, with their
    positions."""
    overlap = b""
    for at, content in _pieces(file, begin, size):
        window = overlap + content
        for place in _likely(window, above, size):
            found = window[place : place + HEAD_BYTES]
            head = unpack_head(found)
            if head is not None:
                yield at - len(overlap) + place, head
        overlap = window[-HEAD_BYTES + 1 :]


def _likely(content: bytes, above: int, size: int) -> list[int]:
    """Return the positions at which a head may begin, judged by its number."""
    places: list[int] = []
    for shift in range(min(8, len(content))):
        numbers = np.frombuffer(content, "<u8", (len(content) - shift) // 8, shift)
        # A file has fewer records than bytes.
        likely = np.flatnonzero((numbers > above) & (numbers <= above + size))
        places += [shift + 8 * place for place in likely.tolist()]
    return sorted(places)


def _damaged(segment: Segment, sequence: int, begin: int, why: str) -> JournalDamagedError:
    """Return the error for an unreadable record."""
    return JournalDamagedError(
        f"{segment.path}: record {sequence}, at byte {begin}, is damaged: {why}"
    )


def _missing(folder: Path, first: int, last: int) -> JournalDamagedError:
    return JournalDamagedError(f"{folder}: records {first} to {last} are missing")


class SegmentWriter:
    """Appends to a new segment.

    Raises:
        FileExistsError: the segment exists.
        OSError: the disk is full or read-only; no segment was made.
    """

    def __init__(self, segment: Segment, identity: JournalIdentity) -> None:
        self.segment = segment
        self._fd = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.size = 0
        """Bytes of the segment."""
        self._torn = False
        try:
            self._write(header(identity))
        except OSError:
            os.close(self._fd)
            os.unlink(segment.path)
            raise

    def append(self, sequence: int, entry: LogEntry) -> None:
        """Append a whole record. If the write fails, the segment ends with the previous one."""
        self._write(pack_head(sequence, entry), *entry.pieces)

    def _write(self, *buffers: Piece) -> None:
        if self._torn:
            self._cut()
        left = sum(map(len, buffers))
        at, pieces = self.size, [memoryview(b) for b in buffers]
        try:
            while left:
                written = os.pwritev(self._fd, pieces[:_MOST_PIECES], at)
                at, left = at + written, left - written
                while left and written >= len(pieces[0]):
                    written -= len(pieces.pop(0))
                pieces[0] = pieces[0][written:]
        except OSError:
            self._cut()
            raise
        self.size = at

    def _cut(self) -> None:
        """Truncate what a failed write left. If that fails, the next write first tries again."""
        self._torn = True
        os.ftruncate(self._fd, self.size)
        self._torn = False

    def sync(self) -> None:
        """Wait until all appended records are on the disk. An OSError says that the kernel has
        dropped data that it could not write."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
