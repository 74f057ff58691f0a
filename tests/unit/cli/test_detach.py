"""A client that continues without the terminal, whosever the job is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG_S

PROGRAM = """
import signal, sys
from torch_edl.cli.platforms import detach
detached = detach("ours")
print("a word", flush=True)
if sys.argv[1] == "fails":
    sys.exit(3)
detached(None)
detached(None)
signal.pause()
"""


def run(way: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, way]
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_a_node_that_joins_leaves_the_terminal_at_the_first_status(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is not started here, and has long been there."""
    monkeypatch.setenv("COLUMNS", "300")
    done = run("joins")
    assert (done.returncode, done.stderr) == (0, "")
    log = re.search(r"would have shown here: (.*)", done.stdout)
    kill = re.search(r"take this machine out of it: kill (\d+)", done.stdout)
    assert log, done.stdout
    assert kill, done.stdout
    os.kill(int(kill[1]), signal.SIGTERM)
    assert Path(log[1]).read_text() == "a word\n"
    assert Path(log[1]).stat().st_mode & 0o077 == 0


def test_what_ends_before_is_shown_with_its_exit_code(home: Path) -> None:
    done = run("fails")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "a word\n")
    assert not [path for path in home.rglob("*") if path.is_file()]
