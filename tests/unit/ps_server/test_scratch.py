"""Folders of processes that may be killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_edl.errors import UsageError
from torch_edl.ps_server.scratch import Scratch

HOLD = """
import sys
from torch_edl.ps_server.scratch import Scratch
print(Scratch("replica").path, flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
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
    assert scratch.path.parent == kept.parent
    scratch.close()
    assert not scratch.path.exists()
    alive.communicate("")
    Scratch("replica").close()
    assert not kept.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="with TMPDIR"):
        Scratch("replica")
