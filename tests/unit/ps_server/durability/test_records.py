"""Records as they travel and as they stand in a segment."""

from __future__ import annotations

import os

import pytest

from torch_edl.errors import UsageError
from torch_edl.ps_server.durability import transfer
from torch_edl.ps_server.durability.records import (
    Kind,
    LogEntry,
    Record,
    pack,
    read,
    unpack,
)
from torch_edl.wire.data_plane.server import MOST_FRAMES


def test_records_travel_as_they_stand_in_a_segment() -> None:
    entries = [(n, LogEntry.of(Kind.GRADIENTS, os.urandom(n * 7))) for n in range(1, 5)]
    content = b"".join(pack(*entry) for entry in entries)
    unsent = transfer.Unsent(1 << 20)
    for entry in entries:
        unsent.append(*entry)
    pieces = unsent.batch(after=0, until=4)
    assert b"".join(pieces) == content
    for given in (pieces, [content], [pack(*entries[0]), *pieces[2:]]):
        assert list(unpack(given)) == entries
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        with pytest.raises(UsageError, match="records:"):
            list(unpack([bytes(damaged)]))
    for cut in (1, 27, len(content) - 1):
        with pytest.raises(UsageError, match="records:"):
            list(unpack([content[:cut]]))
    with pytest.raises(UsageError, match="record 4 is cut off"):
        list(unpack(pieces[:-1]))


def test_a_record_has_the_message_and_the_frames_of_a_call() -> None:
    contents = [os.urandom(size) for size in (3, 70_000, 0, 40_000, 50, 9)]
    for frames in (contents, contents * 400, contents[:1], []):
        entry = LogEntry.of(Kind.GRADIENTS, b"message", frames)
        unsent = transfer.Unsent(1 << 20)
        unsent.append(7, entry)
        pieces = unsent.batch(after=6, until=7)
        assert b"".join(pieces) == pack(7, entry)
        assert len(pieces) < MOST_FRAMES
        for given in (pieces, [pack(7, entry)]):
            (record,) = read(given)
            assert record.parts() == (b"message", frames)
            assert record.packed() == pack(7, entry)
    short = Record(7, Kind.GRADIENTS, b"\x09\0\0\0message", 1)
    with pytest.raises(UsageError, match="record 7: its frames are longer than the record"):
        short.parts()
