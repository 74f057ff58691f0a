"""A journal on a disk that is full, forbidden or broken."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.ps_server.durability.journals import MINE, Server, on_disk, write
from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.ps_server.durability.records import HEAD_BYTES, Kind, LogEntry
from torch_edl.ps_server.durability.segments import SegmentWriter


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
    entry = LogEntry.of(Kind.GRADIENTS, b"b" * 100)
    with limited(size + room), pytest.raises(OSError, match="the change was not made") as caught:
        journal.append(entry)
    assert caught.value.errno == errno.EFBIG
    assert server.segment().stat().st_size == size
    assert journal.place.problem.startswith("journal: File too large: ")
    journal.append(entry)
    journal.wait_durable()
    assert journal.place.problem == ""
    assert server.recovered() == [b"a", b"b" * 100]


def test_no_room_for_a_new_segment(server: Server) -> None:
    journal = server.open()
    write(journal, [])
    with limited(10), pytest.raises(OSError, match="File too large"):
        journal.append(LogEntry.of(Kind.FLUSH, b""))
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
        entry = LogEntry.of(Kind.GRADIENTS, b"b" * 1000)
        fill(lambda: [journal.append(entry) for _ in range(10)])
        written = journal.last
        assert journal.place.problem.startswith("journal: No space left on device")
        ballast.unlink()
        assert journal.append(LogEntry.of(Kind.GRADIENTS, b"c")) == written + 1
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
        on_disk(locked / "journal", MINE, 1)
    assert f"--journal {locked / 'journal'}" in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="name a folder that this user may write to"):
        on_disk(tmp_path / "file", MINE, 1)


def test_a_disk_that_loses_what_was_written_ends_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    journal = server.open(fsync="always", on_lost=lost.append)
    write(journal, [b"a"])

    def fail(_: SegmentWriter) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentWriter, "sync", fail)
    journal.append(LogEntry.of(Kind.FLUSH, b""))
    for error in (OSError, StaleIncarnationError):
        with pytest.raises(error):
            journal.wait_durable()
    with pytest.raises(StaleIncarnationError):
        journal.append(LogEntry.of(Kind.FLUSH, b""))
    assert len(lost) == 1
    assert "Input/output error" in lost[0]
    monkeypatch.undo()


def test_what_a_disk_lost_is_acknowledged_to_nobody_whoever_hears_of_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says once that it lost something: here to the thread that syncs regularly."""
    lost: list[str] = []
    journal = server.open(fsync="always", on_lost=lost.append)
    write(journal, [b"a"])
    journal.append(LogEntry.of(Kind.FLUSH, b""))
    real, told = os.fdatasync, []

    def fail_once(file: int) -> None:
        if not told:
            told.append(file)
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fdatasync", fail_once)
    with pytest.raises(OSError, match="Input/output error"):
        journal.place.sync()
    with pytest.raises(StaleIncarnationError, match="Input/output error"):
        journal.wait_durable()
    assert len(lost) == 1


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of files and folders that were forced to the disk."""
    inodes: list[int] = []
    real = os.fsync

    def note(file: int) -> None:
        real(file)
        inodes.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    return inodes


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_a_successor_forces_to_the_disk_what_its_predecessor_wrote(
    server: Server, forced: list[int], fsync: str
) -> None:
    """The predecessor was killed between the write of a record and the call that forces it."""
    write(server.open(fsync="never"), [b"a"])
    forced.clear()
    successor = server.open(fsync=fsync)
    for _ in successor.records():
        pass
    assert server.segment().stat().st_ino in forced


def test_the_name_of_a_complete_segment_is_forced_to_the_disk(
    server: Server, forced: list[int]
) -> None:
    journal = server.open(fsync="always")
    for _ in journal.records():
        pass
    forced.clear()
    journal.append(LogEntry.of(Kind.FLUSH, b""))
    journal.rotate()
    journal.wait_durable()
    assert server.segment().parent.stat().st_ino in forced


def test_a_journal_that_is_never_forced_waits_for_no_disk(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer spills the log of another server this way."""
    monkeypatch.setattr(SegmentWriter, "sync", lambda _: pytest.fail("it was forced"))
    journal = server.open(fsync="never")
    write(journal, [b"a"])
    journal.rotate()
    journal.append(LogEntry.of(Kind.FLUSH, b""))
    journal.close()
