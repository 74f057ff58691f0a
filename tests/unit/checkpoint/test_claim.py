"""A folder of checkpoints belongs to one run of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torch_edl.checkpoint import claim, layout
from torch_edl.checkpoint.claim import Claim, require_free
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import CheckpointError, UsageError

HOLDS = """
import os, sys
from torch_edl.checkpoint.claim import Claim
root, job, run, child = sys.argv[1:]
held = Claim(root, job=job, run=run)
if child and os.fork() == 0:
    os.close(1)  # as a worker of a DataLoader that outlives its parent
    sys.stdin.read()
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Processes that hold a folder until they are killed, or their standard input is closed."""
    made: list[subprocess.Popen[str]] = []

    def start(job: str, run: str, *, child: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDS, str(tmp_path), job, run, "child" if child else ""]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_second_job_is_rejected_while_the_first_one_runs(tmp_path: Path, start: Start) -> None:
    first = start("one", "r1")
    for _ in range(2):  # a look takes nothing away
        with pytest.raises(UsageError, match=r"one.*process") as told:
            require_free(tmp_path)
    assert str(tmp_path) in str(told.value)
    assert str(first.pid) in str(told.value)
    with pytest.raises(UsageError, match="one"):
        Claim(tmp_path, job="two", run="r2")
    first.kill()
    first.wait()
    require_free(tmp_path)
    second = Claim(tmp_path, job="two", run="r2")
    assert not second.continues
    second.check()


def test_processes_of_one_run_share_the_folder_and_a_restarted_one_finds_it(
    tmp_path: Path, start: Start
) -> None:
    first = start("one", "r1")
    shared = Claim(tmp_path, job="one", run="r1")
    assert shared.continues
    first.kill()
    first.wait()
    with pytest.raises(UsageError, match="one"):
        Claim(tmp_path, job="two", run="r2")
    shared.release()
    again = Claim(tmp_path, job="one", run="r1")
    assert again.continues
    again.check()


def test_a_child_that_outlives_its_parent_holds_nothing(tmp_path: Path, start: Start) -> None:
    first = start("one", "r1", child=True)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    Claim(tmp_path, job="two", run="r2").check()


def test_of_two_that_begin_at_once_one_gets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_PATIENCE_S", 0.2)
    for number in range(20):
        together, got = threading.Barrier(4), []

        def take(
            run: str,
            root: Path = tmp_path / str(number),
            together: threading.Barrier = together,
            got: list[Claim | UsageError] = got,
        ) -> None:
            together.wait()
            try:
                got.append(Claim(root, job=run, run=run))
            except UsageError as error:
                got.append(error)

        threads = [threading.Thread(target=take, args=(f"r{i}",)) for i in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        (owner,) = (each for each in got if isinstance(each, Claim))
        owner.check()


def test_who_lost_the_folder_commits_nothing(tmp_path: Path) -> None:
    """Other machines may not see locks, and a restart may come too late."""
    first = Claim(tmp_path, job="one", run="r1")
    first.release()
    second = Claim(tmp_path, job="two", run="r2")
    first._file = os.open(tmp_path / claim.OWNER_FILE, os.O_RDWR)

    def write(folder: Path) -> Manifest:
        return Manifest(job="one", strategy="ps", steps=3)

    with pytest.raises(CheckpointError, match="two"):
        layout.save(tmp_path, 3, write, run=first.run, fence=first.check)
    assert layout.newest(tmp_path) is None
    second.check()
    with pytest.raises(UsageError, match="two"):  # a master that is restarted
        Claim(tmp_path, job="one", run="r1")


def test_an_owner_that_the_user_removed_is_written_again(tmp_path: Path) -> None:
    mine = Claim(tmp_path / "c", job="one", run="r1")
    (tmp_path / "c" / claim.OWNER_FILE).unlink()
    mine.check()
    with pytest.raises(UsageError, match="one"):
        Claim(tmp_path / "c", job="two", run="r2")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"{}", b'{"run": 3}'])
def test_a_damaged_file_is_of_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / claim.OWNER_FILE).write_bytes(content)
    require_free(tmp_path)
    Claim(tmp_path, job="two", run="r2").check()


def test_a_checkpoint_of_another_run_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    def write(folder: Path) -> Manifest:
        return Manifest(job="j", strategy="ps", steps=3)

    made, manifest = layout.save(tmp_path, 3, write, run="r1")
    assert manifest.run == "r1"
    assert layout.save(tmp_path, 3, write, run="r1")[1] == manifest
    with pytest.raises(CheckpointError, match=r"step-0000000003.* j"):
        layout.save(tmp_path, 3, write, run="r2")
    # A job that was resumed from it, and trained nothing.
    assert layout.save(tmp_path, 3, write, run="r2", restored=str(made))[1] == manifest


@pytest.mark.parametrize("there", ["link", "dangling link", "pipe", "folder"])
def test_a_name_of_the_claim_that_is_no_file_is_refused_and_not_followed(
    tmp_path: Path, there: str
) -> None:
    victim, root = tmp_path / "victim", tmp_path / "checkpoints"
    root.mkdir()
    if there == "pipe":
        os.mkfifo(root / claim.OWNER_FILE)
    elif there == "folder":
        (root / claim.OWNER_FILE).mkdir()
    else:
        (root / claim.OWNER_FILE).symlink_to(victim)
        if there == "link":
            victim.write_text("the bytes of another program")
    for take in (lambda: require_free(root), lambda: Claim(root, job="j", run="r")):
        with pytest.raises(UsageError, match=r"\.owner\.json there is not a file .*; remove it"):
            take()
    assert victim.exists() == (there == "link")
    if there == "link":
        assert victim.read_text() == "the bytes of another program"


def test_a_claim_that_was_replaced_by_a_link_commits_nothing(tmp_path: Path) -> None:
    root, victim = tmp_path / "checkpoints", tmp_path / "victim"
    held = Claim(root, job="j", run="r")
    (root / claim.OWNER_FILE).rename(victim)
    (root / claim.OWNER_FILE).symlink_to(victim)
    with pytest.raises(CheckpointError, match="not a file of a job"):
        held.check()


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    Claim(tmp_path / "checkpoints", job="j", run="r").check()
    assert (tmp_path / "disk" / claim.OWNER_FILE).is_file()
