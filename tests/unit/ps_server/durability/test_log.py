"""The journal as files: what is written is read back, and a snapshot replaces it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.unit.ps_server.durability.crashes import Crash, crash_after
from tests.unit.ps_server.durability.journals import MINE, PAYLOADS, Server, on_disk, write
from tests.waiting import HANG_S
from torch_edl.errors import UsageError
from torch_edl.ps_server.durability import disk as disk_module
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import Kind, LogEntry, Record
from torch_edl.ps_server.durability.segments import SegmentWriter


def test_it_is_read_back_over_segments_and_servers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "SEGMENT_BYTES", 200)
    payloads = [bytes([n]) * n for n in range(100)]
    for part in (payloads[:40], payloads[40:41], [], payloads[41:]):
        write(server.open(), part)
    assert len(list(server.root.glob("*/*.log"))) > 10
    last = server.open(fsync="always")
    records = list(last.records())
    assert records == [Record(n + 1, Kind.GRADIENTS, p) for n, p in enumerate(payloads)]
    assert [r.sequence for r in last.records(after=97)] == [98, 99, 100]
    assert last.last == 100


def test_one_sync_is_for_all_that_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = server.open(fsync="always")
    write(journal, [b"a"])
    syncing, go_on, syncs = threading.Event(), threading.Event(), []
    sync = SegmentWriter.sync

    def slow(writer: SegmentWriter) -> None:
        syncs.append(journal.last)
        syncing.set()
        assert go_on.wait(HANG_S)
        sync(writer)

    monkeypatch.setattr(SegmentWriter, "sync", slow)

    def push() -> None:
        journal.append(LogEntry.of(Kind.FLUSH, b""))
        journal.wait_durable()

    threads = [threading.Thread(target=push) for _ in range(8)]
    threads[0].start()
    assert syncing.wait(HANG_S)
    for thread in threads[1:]:
        thread.start()
    while journal.last < 9:
        assert all(thread.is_alive() for thread in threads)
    go_on.set()
    for thread in threads:
        thread.join(HANG_S)
    assert syncs == [2, 9]


def test_the_interval_goes_on_when_the_clock_jumps(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "FSYNC_INTERVAL_S", 0.01)
    synced = threading.Event()
    monkeypatch.setattr(SegmentWriter, "sync", lambda _: synced.set())
    journal = server.open(fsync="interval")
    write(journal, [])
    for now in (1e10, 0.0, -5.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        journal.append(LogEntry.of(Kind.FLUSH, b""))
        journal.wait_durable()
        assert synced.wait(HANG_S)
        synced.clear()


def test_records_of_another_journal_keep_their_numbers(server: Server, tmp_path: Path) -> None:
    write(server.open(), PAYLOADS)
    source = server.open()
    list(source.records())
    peer = on_disk(tmp_path / "peer", MINE, 1, fsync="never")
    list(peer.records())
    assert (source.base.sequence, source.base.path) == (0, None)
    for record in source.records():
        peer.append_record(record.sequence, LogEntry.of(record.kind, record.payload))
    peer.append_record(2, LogEntry.of(Kind.GRADIENTS, b"again"))
    with pytest.raises(UsageError, match="ends with record 5; send the records in between first"):
        peer.append_record(7, LogEntry.of(Kind.FLUSH, b""))
    peer.close()
    copy = Server(tmp_path / "peer")
    assert copy.recovered() == PAYLOADS
    copy.close()


def snapshot(journal: ChangeLog, content: str) -> None:
    with journal.place.new_base() as folder:
        (folder / "state").write_text(content)
        journal.commit_snapshot(folder, journal.rotate())


def state(journal: ChangeLog) -> list[bytes]:
    begin = journal.base.path
    before = (begin / "state").read_text() if begin else ""
    return [*(c.encode() for c in before), *(r.payload for r in journal.records())]


@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
def test_a_snapshot_replaces_the_records_that_it_covers(server: Server, fsync: str) -> None:
    journal = server.open(fsync=fsync)
    write(journal, [b"a", b"b"])
    snapshot(journal, "ab")
    assert journal.bytes == 0
    assert not list(server.root.glob("*/*.log"))
    opened = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [path for path in opened if path.startswith(str(server.root))], "room on the disk"
    write(journal, [b"c"])
    assert journal.bytes > 0
    journal = server.open()
    assert (state(journal), journal.last) == ([b"a", b"b", b"c"], 3)
    snapshot(journal, "abc")
    journal = server.open()
    assert (state(journal), journal.last) == ([b"a", b"b", b"c"], 3)
    snapshot(journal, "abc")  # of the same record
    write(journal, [b"d"])
    assert state(server.open()) == [b"a", b"b", b"c", b"d"]
    assert len(list(server.root.glob("*/*"))) == 2


def test_a_crash_at_each_step_of_a_snapshot(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "SEGMENT_BYTES", 1)
    text, crashes, finished = "", 0, False
    while not finished:
        journal = server.open()
        assert state(journal) == [c.encode() for c in text]
        write(journal, [b"x", b"y", b"z"])
        text += "xyz"
        with crash_after(crashes):
            try:
                snapshot(journal, text)
                finished = True
            except Crash:
                crashes += 1
    assert crashes > 8
    last = server.open()
    assert state(last) == [c.encode() for c in text]
    assert [path.name for path in last.place.folder.iterdir() if path.suffix == ".log"] == []
