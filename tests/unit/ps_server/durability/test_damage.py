"""A torn tail of a journal is cut, and any other damage is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ps_server.durability.journals import MINE, PAYLOADS, Server, write
from torch_edl.errors import JournalDamagedError
from torch_edl.ps_server.durability import disk as disk_module
from torch_edl.ps_server.durability import segments
from torch_edl.ps_server.durability.records import HEAD_BYTES, Kind, LogEntry


def copies(server: Server) -> Iterator[tuple[Server, Path]]:
    """Endless copies of the journal, each with the path of its only segment."""
    for number in range(1 << 30):
        root = server.root.with_name(f"copy-{number}")
        shutil.copytree(server.root, root)
        copy = Server(root)
        yield copy, copy.segment()
        copy.close()
        shutil.rmtree(root)


def boundaries() -> list[int]:
    """The bytes at which the header and each record end."""
    ends = [len(segments.header(MINE))]
    for payload in PAYLOADS:
        ends.append(ends[-1] + HEAD_BYTES + len(payload))
    return ends


def test_a_cut_at_every_byte_leaves_the_records_before_it(server: Server) -> None:
    write(server.open(), PAYLOADS)
    ends = boundaries()
    size = server.segment().stat().st_size
    assert size == ends[-1]
    for cut, (copy, path) in zip(range(size + 1), copies(server), strict=False):
        os.truncate(path, cut)
        whole = sum(end <= cut for end in ends[1:])
        journal = copy.open()
        assert [r.payload for r in journal.records()] == PAYLOADS[:whole], cut
        assert journal.append(LogEntry.of(Kind.FLUSH, b"next")) == whole + 1
        # The successor's segment supersedes what is left of the torn record.
        assert copy.recovered() == [*PAYLOADS[:whole], b"next"], cut


def test_a_changed_byte_is_named_wherever_it_is(server: Server) -> None:
    write(server.open(), PAYLOADS)
    ends = boundaries()
    for at, (copy, path) in zip(range(ends[-1]), copies(server), strict=False):
        content = bytearray(path.read_bytes())
        content[at] ^= 0x10
        path.write_bytes(content)
        sequence = max(1, sum(end <= at for end in ends))
        named = rf"-1\.log: record {sequence}, at byte .* cannot be read, \d behind can .*--repair"
        with pytest.raises(JournalDamagedError, match=named):
            copy.recovered()
        # All others can be read: those of a damaged header, too.
        journal = copy.open(repair=True)
        left = PAYLOADS[: sequence - 1] + PAYLOADS[sequence if at >= ends[0] else 0 :]
        assert [r.payload for r in journal.records()] == left, at
        damage = journal.place.damage
        at_end = int(sequence == len(PAYLOADS))
        assert (damage.at_end, damage.lost) == (at_end, int(at >= ends[0]) - at_end), at
        assert damage.intact == len(left) - sequence + 1


def test_a_bit_that_flipped_in_a_journal_cut_anywhere_is_damage_or_a_torn_tail(
    server: Server, tmp_path: Path
) -> None:
    """Whatever the length of what is left behind the damage."""
    write(server.open(), PAYLOADS[:2])
    content, ends = server.segment().read_bytes(), boundaries()
    segment = segments.Segment.named(tmp_path, 1, 1)
    for cut in range(len(content) + 1):
        for at in range(max(0, cut - 12), cut):
            damaged = bytearray(content[:cut])
            damaged[at] ^= 0x80
            segment.path.write_bytes(damaged)
            try:
                found = [record.payload for record in segments.read([segment], MINE)]
            except JournalDamagedError:
                continue
            assert found == PAYLOADS[: sum(end <= at for end in ends[1:])], (cut, at)


def test_sectors_that_power_loss_left_empty_are_cut(server: Server) -> None:
    write(server.open(), [b"a" * 3000, b"b" * 3000])
    begin = len(segments.header(MINE)) + HEAD_BYTES + 3000
    for empty in range(begin // 512 + 1, (begin + 3000) // 512):
        copy, path = next(copies(server))
        content = bytearray(path.read_bytes())
        content[empty * 512 : (empty + 1) * 512] = bytes(512)
        path.write_bytes(content)
        assert copy.recovered() == [b"a" * 3000], empty
        copy.close()
        shutil.rmtree(copy.root)


@pytest.mark.parametrize("at", [0, 8, 30, 2000])
def test_damage_before_a_good_record_is_no_torn_tail(server: Server, at: int) -> None:
    """Though the damaged record, and those after it, have sectors of zeros."""
    write(server.open(), [b"a", *[bytes(3000)] * 3])
    path = server.segment()
    content = bytearray(path.read_bytes())
    content[len(segments.header(MINE)) + HEAD_BYTES + 1 + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalDamagedError, match="record 2, at byte"):
        server.recovered()


def test_a_segment_that_is_missing_is_damage(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "SEGMENT_BYTES", 1)
    write(server.open(), PAYLOADS)
    paths = sorted(server.root.glob("*/*.log"))
    paths[2].unlink()
    with pytest.raises(JournalDamagedError, match="record 3, at byte"):
        server.recovered()
    sorted(server.root.glob("*/*.log"))[0].unlink()
    journal = server.open(repair=True)
    assert [r.sequence for r in journal.records()] == [2, 4, 5]
    damage = journal.place.damage
    assert (damage.lost, damage.intact) == (2, 3)
    assert "records 1 to 1 are missing; 2 records cannot be read, 3 behind" in damage.text


@pytest.mark.parametrize(("after", "used"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (9, [3])])
def test_a_segment_whose_records_are_in_a_snapshot_can_be_deleted(
    tmp_path: Path, after: int, used: list[int]
) -> None:
    for first in (1, 2, 3):
        segments.Segment.named(tmp_path, first, 1).path.touch()
    chain, useless = segments.chain(tmp_path, after)
    assert [segment.first for segment in chain] == used
    assert sorted(segment.first for segment in useless) == [n for n in (1, 2, 3) if n not in used]
