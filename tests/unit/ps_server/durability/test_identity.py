"""Whose a journal is: of another job, format or server, and never of two servers."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ps_server.durability.journals import MINE, Server, on_disk, write
from tests.waiting import HANG_S
from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.ps_server.durability import disk as disk_module
from torch_edl.ps_server.durability import identity
from torch_edl.ps_server.durability.identity import find
from torch_edl.ps_server.durability.records import Kind, LogEntry


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"job": "other"}, "a journal of job 'job' (this server: 'other')"),
        ({"shard": 1}, "shard 0 (this server: 1)"),
        ({"shards": 3}, "number of shards 2 (this server: 3)"),
        ({"model": 2}, "incarnation of the model 1 (this server: 2)"),
        ({"run": "b"}, "run '' (this server: 'b')"),
    ],
)
def test_another_journal_is_refused(server: Server, change: dict[str, Any], text: str) -> None:
    write(server.open(), [b"a"])
    with pytest.raises(UsageError) as caught:
        on_disk(server.root, replace(MINE, **change), 9)
    assert text in str(caught.value)
    assert "choose another --journal-dir" in str(caught.value)
    # A segment that somebody copied here.
    other = replace(MINE, **change)
    shutil.rmtree(server.root)
    first = on_disk(server.root, other, 1, fsync="never")
    write(first, [b"b"])
    (server.root / "journal.json").write_text(MINE.to_json())
    with pytest.raises(UsageError, match=r"-1\.log: a journal of"):
        server.recovered()
    first.close()


def test_another_format_and_a_damaged_description(server: Server) -> None:
    write(server.open(), [b"a"])
    path = server.root / "journal.json"
    text = path.read_text()
    for old in (2, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(identity, "FORMAT", old)
            path.write_text(MINE.to_json())
        with pytest.raises(UsageError, match=rf"a journal of format {old}; .* reads format 4"):
            server.open()
    path.write_text(text[:20])
    with pytest.raises(JournalDamagedError, match="it is damaged"):
        server.open()
    path.write_text(text)
    shutil.rmtree(path.parent / "incarnation-1")
    with pytest.raises(JournalDamagedError, match="incarnation-NUMBER is missing"):
        server.open()
    (path.parent / "incarnation-1").mkdir()
    path.unlink()
    with pytest.raises(UsageError, match="holds other files than a journal"):
        server.open()


def test_a_bit_of_the_description_that_flipped_is_damage_wherever_it_is(server: Server) -> None:
    write(server.open(), [b"a"])
    path = server.root / "journal.json"
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(JournalDamagedError, match=r"journal\.json: .*; it is damaged"):
            server.open()
    path.write_bytes(content)
    assert server.recovered() == [b"a"]


def test_a_server_that_was_replaced_does_not_acknowledge(server: Server) -> None:
    lost: list[str] = []
    first = server.open(on_lost=lost.append)
    write(first, [b"a", b"b"])
    second = server.open()
    assert [r.payload for r in second.records()] == [b"a", b"b"]
    # It writes to the file that it has open, and looks before it acknowledges.
    late = first.append(LogEntry.of(Kind.GRADIENTS, b"late"))
    with pytest.raises(StaleIncarnationError, match="a later server has taken the shard over"):
        first.wait_durable()
    with pytest.raises(StaleIncarnationError):
        first.append(LogEntry.of(Kind.GRADIENTS, b"later"))
    assert len(lost) == 1
    assert second.append(LogEntry.of(Kind.GRADIENTS, b"c")) == late
    second.wait_durable()
    assert server.recovered() == [b"a", b"b", b"c"]
    with pytest.raises(StaleIncarnationError, match="this server has incarnation 2"):
        on_disk(server.root, MINE, 2)


def test_a_server_that_was_replaced_can_neither_begin_nor_delete(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.open()
    write(first, [b"a", b"b"])
    with first.place.new_base() as snapshot:
        second = server.open()
        list(second.records())
        monkeypatch.setattr(disk_module, "SEGMENT_BYTES", 1)
        with pytest.raises(StaleIncarnationError):
            first.append(LogEntry.of(Kind.GRADIENTS, b"late"))
        with pytest.raises(StaleIncarnationError):
            first.commit_snapshot(snapshot, 2)
    with pytest.raises(OSError, match="No such file"), first.place.new_base():
        pass
    assert server.recovered() == [b"a", b"b"]


def test_a_record_of_a_replaced_server_counts_if_the_successor_saw_it(server: Server) -> None:
    first = server.open()
    write(first, [b"a"])
    second = server.open()
    first.append(LogEntry.of(Kind.GRADIENTS, b"late"))
    assert [r.payload for r in second.records()] == [b"a", b"late"]
    first.append(LogEntry.of(Kind.GRADIENTS, b"too late"))
    assert second.append(LogEntry.of(Kind.GRADIENTS, b"b")) == 3
    assert server.recovered() == [b"a", b"late", b"b"]


def test_servers_that_begin_at_once_do_not_both_own_it(tmp_path: Path) -> None:
    for turn in range(20):
        root, owners, refused = tmp_path / str(turn), [], []
        barrier = threading.Barrier(4)

        def take(incarnation: int) -> None:
            barrier.wait()  # noqa: B023
            try:
                journal = on_disk(root, MINE, incarnation, fsync="never")  # noqa: B023
                write(journal, [])
                owners.append(journal)  # noqa: B023
            except StaleIncarnationError:
                refused.append(incarnation)  # noqa: B023

        threads = [threading.Thread(target=take, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert find(root) == (4, root / "incarnation-4")
        acknowledged = 0
        for journal in owners:
            try:
                journal.append(LogEntry.of(Kind.FLUSH, b""))
                journal.wait_durable()
                acknowledged += 1
            except StaleIncarnationError:
                pass
            journal.close()
        assert acknowledged == 1
