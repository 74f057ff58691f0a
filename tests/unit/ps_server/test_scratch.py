"""Folders of processes that may be killed, beside what other users made."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.other_user import needs_root, run_as_stranger
from torch_edl.errors import UsageError
from torch_edl.ps_server.scratch import Scratch

HOLD = """
import sys
from torch_edl.ps_server.scratch import Scratch
print(Scratch("replica").path, flush=True)
sys.stdin.read()
"""
MAKE = """
kind, path, valuables = sys.argv[1:]
if kind == "link":
    os.symlink(valuables, path)
elif kind == "file":
    open(path, "w").close()
else:
    os.mkdir(path)
    open(os.path.join(path, ".torch-edl-scratch"), "w").close()
    os.chmod(path, 0o777 if kind == "open" else 0o700)
"""


@pytest.fixture
def tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, as /tmp: all may make files there."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)  # of pytest, closed to others
    made = tmp_path / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(made))
    monkeypatch.setattr("tempfile.tempdir", None)
    return made


@pytest.fixture
def valuables(tmp_path: Path) -> Path:
    """A folder of this user that has folders."""
    (tmp_path / "home" / "photos").mkdir(parents=True)
    (tmp_path / "home" / "photos" / "one").write_text("1")
    return tmp_path / "home"


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next(
    tmpdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        held.append((process, Path(process.stdout.readline().strip())))
    (killed, left), (alive, kept) = held
    killed.kill()
    killed.communicate()
    (left / "content").write_text("of a replica")
    scratch = Scratch("replica")
    assert not left.exists()
    assert kept.exists()
    scratch.close()
    assert not scratch.path.exists()
    alive.communicate("")
    Scratch("replica").close()
    assert not kept.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmpdir / "missing"))
    with pytest.raises(UsageError, match="with TMPDIR"):
        Scratch("replica")


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_was_not_made_here_is_not_removed(tmpdir: Path, valuables: Path, kind: str) -> None:
    path = tmpdir / f"torch-edl-{os.getuid()}-mine"
    path.symlink_to(valuables) if kind == "link" else valuables.rename(path)
    Scratch("replica").close()
    assert [each.name for each in path.iterdir()] == ["photos"]
    assert (path / "photos" / "one").read_text() == "1"


@needs_root
@pytest.mark.parametrize("kind", ["link", "folder", "open", "file"])
def test_names_that_another_user_took_harm_nobody(tmpdir: Path, valuables: Path, kind: str) -> None:
    path = tmpdir / f"torch-edl-{os.getuid()}-replica-0"
    run_as_stranger(MAKE, kind, str(path), str(valuables))
    scratch = Scratch("replica")
    assert scratch.path != path
    assert scratch.path.stat().st_uid == os.getuid()
    scratch.close()
    assert os.path.lexists(path)
    assert (valuables / "photos" / "one").exists()


@needs_root
def test_no_other_user_enters(tmpdir: Path) -> None:
    scratch = Scratch("replica")
    look = "print(os.access(sys.argv[1], os.X_OK))"
    assert run_as_stranger(look, str(scratch.path)) == "False\n"
    scratch.close()
