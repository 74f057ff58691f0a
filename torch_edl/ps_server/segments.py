"""The files of a journal. A segment is a header that says which journal it is of, and records.

``00000000000000000001-3.log`` was begun by the server of incarnation 3 and holds the records from
number 1 on. The records of a segment end where a segment of the same server continues, or where a
later server has begun: what an earlier server wrote there meanwhile was never acknowledged.

A process that dies leaves a last record that is not complete, and a machine that loses power may
leave sectors of zeros. Such a tail is cut. Anything else that does not match is damage.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from torch_edl.errors import JournalDamagedError
from torch_edl.ps_server.identity import Identity
from torch_edl.ps_server.records import HEAD_BYTES, Entry, Record, pack_head, unpack_head

_MAGIC = b"EDLJRNL\n"
_LENGTHS = struct.Struct("<II")  # bytes of the description, and its CRC-32
_NAME = re.compile(r"(\d{20})-(\d+)\.log")
_SECTOR = 512
_SEARCHED = 16 << 20  # bytes that are searched at a time
_LONGEST_DESCRIPTION = 1 << 16


@dataclass(frozen=True)
class Segment:
    """A file of records."""

    path: Path
    first: int
    """Sequence number of its first record."""
    incarnation: int
    """Of the server that wrote it."""
    end: int | None = None
    """Records from this number on are in later segments; None: the last segment."""

    @classmethod
    def named(cls, folder: Path, first: int, incarnation: int) -> Segment:
        """The segment that begins there."""
        return cls(folder / f"{first:020d}-{incarnation}.log", first, incarnation)


def chain(folder: Path, after: int = 0) -> tuple[list[Segment], list[Segment]]:
    """The segments with the records after number ``after``, in order, and those that are of no use
    any more: covered, or superseded by a later server."""
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


def header(identity: Identity) -> bytes:
    """The beginning of a segment."""
    text = identity.to_json().encode()
    return _MAGIC + _LENGTHS.pack(len(text), zlib.crc32(text)) + text


def read(segments: Sequence[Segment], identity: Identity, after: int = 0) -> Iterator[Record]:
    """The records after number ``after`` of a chain. A torn tail of the last segment is left out.

    Raises:
        JournalDamagedError: a record before the tail is damaged or missing; the message names it.
        UsageError: a segment is of another journal.
    """
    expected = after + 1
    for segment in segments:
        if segment.first > expected:
            raise _missing(segment.path.parent, expected, segment.first - 1)
        for record, _ in read_segment(segment, identity):
            if record.sequence == expected:
                expected += 1
                yield record


def read_segment(segment: Segment, identity: Identity) -> Iterator[tuple[Record, int]]:
    """The records of a segment, each with the byte at which it ends.

    Raises:
        JournalDamagedError, UsageError: see :func:`read`.
    """
    sequence = segment.first
    with open(segment.path, "rb", buffering=1 << 20) as file:
        size = os.fstat(file.fileno()).st_size
        if not _read_header(file, size, segment, identity):
            return
        while segment.end is None or sequence < segment.end:
            begin = file.tell()
            record = _read_record(file, size, segment, sequence)
            if record is None:
                if segment.end is not None:
                    raise damage(segment, sequence, begin, "the file ends before it")
                return
            yield record, file.tell()
            sequence += 1


def _read_header(file: BinaryIO, size: int, segment: Segment, identity: Identity) -> bool:
    """False if the writer died before the whole header was on the disk."""
    expected = header(identity)
    content = file.read(len(expected))
    if content == expected:
        return True
    if segment.end is None and expected.startswith(content):
        return False
    _require_header(file, segment, identity)
    if segment.end is None and _is_torn(file, 0, size, segment.first - 1):
        return False
    raise damage(segment, segment.first, 0, "the header of the segment does not match")


def _require_header(file: BinaryIO, segment: Segment, identity: Identity) -> None:
    """Raises UsageError if the header is good, but of another journal."""
    file.seek(0)
    start = file.read(len(_MAGIC) + _LENGTHS.size)
    if not start.startswith(_MAGIC) or len(start) < len(_MAGIC) + _LENGTHS.size:
        return
    length, crc = _LENGTHS.unpack_from(start, len(_MAGIC))
    text = file.read(min(length, _LONGEST_DESCRIPTION))
    if zlib.crc32(text) == crc:
        try:
            identity.require(text, segment.path)
        except (KeyError, TypeError) as error:
            raise damage(segment, segment.first, 0, f"its header: {error}") from None


def _read_record(file: BinaryIO, size: int, segment: Segment, sequence: int) -> Record | None:
    """The record at this place; None where the file ends, or ends with a torn record."""
    begin = file.tell()
    content = file.read(HEAD_BYTES)
    if len(content) < HEAD_BYTES:
        return None
    head = unpack_head(content)
    if head is None:
        why = "its head does not match its checksum"
    elif head.sequence != sequence:
        why = f"record {head.sequence} is in its place"
    else:
        if size - file.tell() < head.length:
            return None
        payload = file.read(head.length)
        if zlib.crc32(payload) == head.crc:
            return Record(sequence, head.kind, payload)
        why = "its content does not match its checksum"
    if segment.end is None and _is_torn(file, begin, size, sequence):
        return None
    raise damage(segment, sequence, begin, why)


def _is_torn(file: BinaryIO, begin: int, size: int, sequence: int) -> bool:
    """Whether power was lost before what comes from ``begin`` on reached the disk. The length of a
    file may be there before its content is, and the content appears a sector at a time: sectors of
    zeros are there then, and no complete record of a number above ``sequence``."""
    empty = False
    at = begin
    overlap = b""
    while at < size:
        file.seek(at)
        content = file.read(_SEARCHED - at % _SECTOR)
        if not content:
            break
        sectors = np.frombuffer(content, np.uint8)[-at % _SECTOR :]
        sectors = sectors[: len(sectors) // _SECTOR * _SECTOR].reshape(-1, _SECTOR)
        empty = empty or not bool(sectors.any(axis=1).all())
        if _has_head(overlap + content, sequence, size):
            return False
        overlap = content[-HEAD_BYTES + 1 :]
        at += len(content)
    return empty


def _has_head(content: bytes, sequence: int, size: int) -> bool:
    """Whether the head of a record above ``sequence`` begins at any byte."""
    for shift in range(8):
        numbers = np.frombuffer(content, "<u8", max(0, len(content) - shift) // 8, shift)
        # A record takes a byte at least, so no file has more of them than bytes.
        likely = np.flatnonzero((numbers > sequence) & (numbers <= sequence + size))
        for place in likely.tolist():
            head = content[shift + 8 * place :][:HEAD_BYTES]
            if len(head) == HEAD_BYTES and unpack_head(head) is not None:
                return True
    return False


def damage(segment: Segment, sequence: int, begin: int, why: str) -> JournalDamagedError:
    """Names a record that cannot be read."""
    return JournalDamagedError(
        f"{segment.path}: record {sequence}, at byte {begin}, is damaged: {why}"
    )


def _missing(folder: Path, first: int, last: int) -> JournalDamagedError:
    return JournalDamagedError(f"{folder}: records {first} to {last} are missing")


class SegmentWriter:
    """Appends to a new segment.

    Raises:
        FileExistsError: the segment is there.
        OSError: the disk is full or read-only; no segment was made.
    """

    def __init__(self, segment: Segment, identity: Identity) -> None:
        self.segment = segment
        self._fd = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.size = 0
        self._torn = False
        try:
            self._write(header(identity))
        except OSError:
            os.close(self._fd)
            os.unlink(segment.path)
            raise

    def append(self, sequence: int, entry: Entry) -> None:
        """Appends a record whole.

        Raises:
            OSError: the disk refused; the segment ends with the record before.
        """
        self._write(pack_head(sequence, entry), entry.payload)

    def _write(self, *buffers: bytes) -> None:
        if self._torn:
            self._cut()
        left = sum(map(len, buffers))
        at, pieces = self.size, [memoryview(b) for b in buffers]
        try:
            while left:
                written = os.pwritev(self._fd, pieces, at)
                at, left = at + written, left - written
                while left and written >= len(pieces[0]):
                    written -= len(pieces.pop(0))
                pieces[0] = pieces[0][written:]
        except OSError:
            self._cut()
            raise
        self.size = at

    def _cut(self) -> None:
        """Removes what a failed write left; the next write does not begin before that is done."""
        self._torn = True
        os.ftruncate(self._fd, self.size)
        self._torn = False

    def sync(self) -> None:
        """Returns when all that was appended is on the disk.

        Raises:
            OSError: it may not be; the kernel has dropped what it could not write.
        """
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
