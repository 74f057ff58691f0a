"""The journal as files: what is cut, what is damage, whose it is, and what a full disk does."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.ps_server import journal as journal_module
from torch_edl.ps_server import segments
from torch_edl.ps_server.identity import Identity
from torch_edl.ps_server.journal import Journal
from torch_edl.ps_server.ownership import find
from torch_edl.ps_server.records import HEAD_BYTES, Entry, Kind, Record
from torch_edl.ps_server.segments import SegmentWriter

MINE = Identity(job="job", shard=0, shards=2, model=1)
PAYLOADS = [b"first", b"", b"\0" * 40, bytes(range(60)), b"last"]


class Server:
    """Opens the journal under a folder, each time as a later server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: list[Journal] = []

    def open(self, **more: Any) -> Journal:
        owner = find(self.root) if self.root.exists() else None
        incarnation = owner[0] + 1 if owner else 1
        self._opened.append(Journal(self.root, MINE, incarnation, **{"fsync": "never", **more}))
        return self._opened[-1]

    def recovered(self) -> list[bytes]:
        return [record.payload for record in self.open().records()]

    def segment(self) -> Path:
        (path,) = self.root.glob("*/*.log")
        return path

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    opened = Server(tmp_path / "journal")
    yield opened
    opened.close()


def write(journal: Journal, payloads: list[bytes]) -> None:
    for _ in journal.records():
        pass
    for payload in payloads:
        journal.wait_durable(journal.append(Entry.of(Kind.GRADIENTS, payload)))


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


def test_it_is_read_back_over_segments_and_servers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 200)
    payloads = [bytes([n]) * n for n in range(100)]
    for part in (payloads[:40], payloads[40:41], [], payloads[41:]):
        write(server.open(), part)
    assert len(list(server.root.glob("*/*.log"))) > 10
    last = server.open(fsync="always")
    records = list(last.records())
    assert records == [Record(n + 1, Kind.GRADIENTS, p) for n, p in enumerate(payloads)]
    assert [r.sequence for r in last.records(after=97)] == [98, 99, 100]
    assert last.last == 100


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
        assert journal.append(Entry.of(Kind.FLUSH, b"next")) == whole + 1
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
        with pytest.raises(JournalDamagedError, match=rf"-1\.log: record {sequence}, at byte"):
            copy.recovered()


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
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    write(server.open(), PAYLOADS)
    paths = sorted(server.root.glob("*/*.log"))
    paths[2].unlink()
    with pytest.raises(JournalDamagedError, match="record 3, at byte"):
        server.recovered()


# ---- the disk ----


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 99])
def test_an_append_without_room_leaves_nothing(server: Server, room: int) -> None:
    journal = server.open()
    write(journal, [b"a"])
    size = server.segment().stat().st_size
    entry = Entry.of(Kind.GRADIENTS, b"b" * 100)
    with limited(size + room), pytest.raises(OSError, match="the change was not made") as caught:
        journal.append(entry)
    assert caught.value.errno == errno.EFBIG
    assert server.segment().stat().st_size == size
    assert journal.problem.startswith("journal: File too large: ")
    journal.wait_durable(journal.append(entry))
    assert journal.problem == ""
    assert server.recovered() == [b"a", b"b" * 100]


def test_no_room_for_a_new_segment(server: Server) -> None:
    journal = server.open()
    write(journal, [])
    with limited(10), pytest.raises(OSError, match="File too large"):
        journal.append(Entry.of(Kind.FLUSH, b""))
    assert not list(server.root.glob("*/*.log"))
    write(journal, [b"a"])
    assert server.recovered() == [b"a"]


def fill(write_more: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        write_more()


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here; the limit of a file is tested")
    server = Server(disk / "journal")
    try:
        journal = server.open()
        write(journal, [b"a" * 1000] * 10)
        ballast = disk / "ballast"
        fill(lambda: ballast.write_bytes(b"\0" * (2 << 20)))
        entry = Entry.of(Kind.GRADIENTS, b"b" * 1000)
        fill(lambda: [journal.append(entry) for _ in range(10)])
        written = journal.last
        assert journal.problem.startswith("journal: No space left on device")
        ballast.unlink()
        assert journal.append(Entry.of(Kind.GRADIENTS, b"c")) == written + 1
        assert server.recovered() == [b"a" * 1000] * 10 + [b"b" * 1000] * (written - 10) + [b"c"]
    finally:
        server.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Nobody may write to the folder, this process included."""
    folder.chmod(0o555)
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir()
    with without_rights(locked), pytest.raises(UsageError, match="Permission denied") as caught:
        Journal(locked / "journal", MINE, 1)
    assert f"--journal {locked / 'journal'}" in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="name a folder that this user may write to"):
        Journal(tmp_path / "file", MINE, 1)


def test_a_disk_that_loses_what_was_written_ends_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    journal = server.open(fsync="always", on_lost=lost.append)
    write(journal, [b"a"])

    def fail(_: SegmentWriter) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentWriter, "sync", fail)
    position = journal.append(Entry.of(Kind.FLUSH, b""))
    for error in (OSError, StaleIncarnationError):
        with pytest.raises(error):
            journal.wait_durable(position)
    with pytest.raises(StaleIncarnationError):
        journal.append(Entry.of(Kind.FLUSH, b""))
    assert len(lost) == 1
    assert "Input/output error" in lost[0]
    monkeypatch.undo()


# ---- whose it is ----


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
        Journal(server.root, replace(MINE, **change), 9)
    assert text in str(caught.value)
    assert "choose another --journal-dir" in str(caught.value)
    # A segment that somebody copied here.
    other = replace(MINE, **change)
    shutil.rmtree(server.root)
    first = Journal(server.root, other, 1, fsync="never")
    write(first, [b"b"])
    (server.root / "journal.json").write_text(MINE.to_json())
    with pytest.raises(UsageError, match=r"-1\.log: a journal of"):
        server.recovered()
    first.close()


def test_another_format_and_a_damaged_description(server: Server) -> None:
    write(server.open(), [b"a"])
    path = server.root / "journal.json"
    text = path.read_text()
    path.write_text(text.replace('"format": 1', '"format": 7'))
    with pytest.raises(UsageError, match=r"a journal of format 7; .* reads format 1"):
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


def test_a_server_that_was_replaced_does_not_acknowledge(server: Server) -> None:
    lost: list[str] = []
    first = server.open(on_lost=lost.append)
    write(first, [b"a", b"b"])
    second = server.open()
    assert [r.payload for r in second.records()] == [b"a", b"b"]
    # It writes to the file that it has open, and looks before it acknowledges.
    late = first.append(Entry.of(Kind.GRADIENTS, b"late"))
    with pytest.raises(StaleIncarnationError, match="a later server has taken the shard over"):
        first.wait_durable(late)
    with pytest.raises(StaleIncarnationError):
        first.append(Entry.of(Kind.GRADIENTS, b"later"))
    assert len(lost) == 1
    assert second.append(Entry.of(Kind.GRADIENTS, b"c")) == late
    second.wait_durable(late)
    assert server.recovered() == [b"a", b"b", b"c"]
    with pytest.raises(StaleIncarnationError, match="this server has incarnation 2"):
        Journal(server.root, MINE, 2)


def test_a_server_that_was_replaced_can_neither_begin_nor_delete(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.open()
    write(first, [b"a", b"b"])
    snapshot = first.temporary()
    second = server.open()
    list(second.records())
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    with pytest.raises(StaleIncarnationError):
        first.append(Entry.of(Kind.GRADIENTS, b"late"))
    with pytest.raises(StaleIncarnationError):
        first.commit_snapshot(snapshot, 2)
    with pytest.raises(OSError, match="No such file"):
        first.temporary()
    assert server.recovered() == [b"a", b"b"]


def test_a_record_of_a_replaced_server_counts_if_the_successor_saw_it(server: Server) -> None:
    first = server.open()
    write(first, [b"a"])
    second = server.open()
    first.append(Entry.of(Kind.GRADIENTS, b"late"))
    assert [r.payload for r in second.records()] == [b"a", b"late"]
    first.append(Entry.of(Kind.GRADIENTS, b"too late"))
    assert second.append(Entry.of(Kind.GRADIENTS, b"b")) == 3
    assert server.recovered() == [b"a", b"late", b"b"]


def test_servers_that_begin_at_once_do_not_both_own_it(tmp_path: Path) -> None:
    for turn in range(20):
        root, owners, refused = tmp_path / str(turn), [], []
        barrier = threading.Barrier(4)

        def take(incarnation: int) -> None:
            barrier.wait()  # noqa: B023
            try:
                journal = Journal(root, MINE, incarnation, fsync="never")  # noqa: B023
                write(journal, [])
                owners.append(journal)  # noqa: B023
            except StaleIncarnationError:
                refused.append(incarnation)  # noqa: B023

        threads = [threading.Thread(target=take, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert find(root) == (4, root / "incarnation-4")
        acknowledged = 0
        for journal in owners:
            try:
                journal.wait_durable(journal.append(Entry.of(Kind.FLUSH, b"")))
                acknowledged += 1
            except StaleIncarnationError:
                pass
            journal.close()
        assert acknowledged == 1


# ---- durability ----


def test_one_sync_is_for_all_that_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = server.open(fsync="always")
    write(journal, [b"a"])
    syncing, go_on, syncs = threading.Event(), threading.Event(), []
    sync = SegmentWriter.sync

    def slow(writer: SegmentWriter) -> None:
        syncs.append(journal.last)
        syncing.set()
        assert go_on.wait(20)
        sync(writer)

    monkeypatch.setattr(SegmentWriter, "sync", slow)

    def push() -> None:
        journal.wait_durable(journal.append(Entry.of(Kind.FLUSH, b"")))

    threads = [threading.Thread(target=push) for _ in range(8)]
    threads[0].start()
    assert syncing.wait(20)
    for thread in threads[1:]:
        thread.start()
    while journal.last < 9:
        assert all(thread.is_alive() for thread in threads)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert syncs == [2, 9]


def test_the_interval_goes_on_when_the_clock_jumps(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "FSYNC_INTERVAL_S", 0.01)
    synced = threading.Event()
    monkeypatch.setattr(SegmentWriter, "sync", lambda _: synced.set())
    journal = server.open(fsync="interval")
    write(journal, [])
    for now in (1e10, 0.0, -5.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        journal.wait_durable(journal.append(Entry.of(Kind.FLUSH, b"")))
        assert synced.wait(20)
        synced.clear()


def test_records_of_another_journal_keep_their_numbers(server: Server, tmp_path: Path) -> None:
    write(server.open(), PAYLOADS)
    source = server.open()
    list(source.records())
    peer = Journal(tmp_path / "peer", MINE, 1, fsync="never")
    list(peer.records())
    with source.reading() as (base, records):
        assert (base.sequence, base.path) == (0, None)
        for record in records:
            peer.append_record(record)
    peer.append_record(Record(2, Kind.GRADIENTS, b"again"))
    with pytest.raises(UsageError, match="ends with record 5; send the records in between first"):
        peer.append_record(Record(7, Kind.FLUSH, b""))
    peer.close()
    copy = Server(tmp_path / "peer")
    assert copy.recovered() == PAYLOADS
    copy.close()


# ---- snapshots ----


def snapshot(journal: Journal, content: str) -> None:
    temporary = journal.temporary()
    (temporary / "state").write_text(content)
    journal.commit_snapshot(temporary, journal.rotate())


def state(journal: Journal) -> list[bytes]:
    begin = journal.base.path
    before = (begin / "state").read_text() if begin else ""
    return [*(c.encode() for c in before), *(r.payload for r in journal.records())]


def test_a_snapshot_replaces_the_records_that_it_covers(server: Server) -> None:
    journal = server.open()
    write(journal, [b"a", b"b"])
    snapshot(journal, "ab")
    assert journal.bytes == 0
    assert not list(server.root.glob("*/*.log"))
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
    class Crash(BaseException):
        pass

    def crashing(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            return call(*args, **more)

        return counted

    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    text, crashes, left = "", 0, 1 << 30
    while left > 1 << 29 or left < 0:
        journal = server.open()
        assert state(journal) == [c.encode() for c in text]
        write(journal, [b"x", b"y", b"z"])
        text += "xyz"
        left = crashes
        with monkeypatch.context() as patch:
            for module, name in ((os, "rename"), (os, "mkdir"), (os, "unlink"), (os, "rmdir")):
                patch.setattr(module, name, crashing(getattr(module, name)))
            patch.setattr(os, "fdatasync", crashing(os.fdatasync))
            patch.setattr(os, "fsync", crashing(os.fsync))
            try:
                snapshot(journal, text)
            except Crash:
                crashes += 1
    assert crashes > 8
    last = server.open()
    assert state(last) == [c.encode() for c in text]
    assert [path.name for path in last.folder.iterdir() if path.suffix == ".log"] == []
