"""How a process left its loop over a loader, as its node finds out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_edl.processes.script_marks import is_failing, open_loop

SCRIPT = """
import os, sys
from torch_edl.api.ending import Ending
from torch_edl.errors import DismissedError
ending = Ending(lambda: None, lambda: False)

def batches():
    with ending.dismissal(), ending.loop():
        yield 1
        if sys.argv[1] == "dismissed":
            raise DismissedError("the job continues without this process")
        if sys.argv[1] in ("caught", "again"):
            raise ValueError("no such column")
        yield 2

def run(how):
    for batch in batches():
        if how == "break": break
        if how == "return": return
        if how == "sys.exit": sys.exit(0)
        if how == "vanish": os._exit(0)
        if how == "own error": raise KeyError(7)

ending.watch()
try:
    run(sys.argv[1])
except (ValueError, KeyError):
    pass
if sys.argv[1] == "again":
    sys.argv[1] = ""
    run("")
if sys.argv[1] == "after":
    os._exit(0)
if sys.argv[1] == "kept":
    kept = batches()
    next(kept)
    kept.close()
print(ending.finished)
"""


@pytest.mark.parametrize(
    ("how", "finished", "found"),
    [
        ("end", "True", None),
        ("after", "", None),
        ("break", "True", None),
        ("return", "True", None),
        ("sys.exit", "", None),
        ("own error", "True", None),
        ("kept", "True", None),
        ("again", "True", None),
        ("dismissed", "", None),
        ("vanish", "", ""),
        ("caught", "False", "ValueError: no such column"),
    ],
)
def test_a_loop_is_left_open_by_a_process_that_vanishes_and_by_an_error_of_the_loop(
    how: str, finished: str, found: str | None, tmp_path: Path
) -> None:
    error_file = str(tmp_path / "error.json")
    env = {"TORCHELASTIC_ERROR_FILE": error_file, "TORCH_EDL_MASTER": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, finished), done.stderr
    assert open_loop(error_file) == found
    assert not is_failing(error_file)


def test_a_process_that_raised_says_so_before_it_has_ended(tmp_path: Path) -> None:
    error_file = str(tmp_path / "error.json")
    env = {"TORCHELASTIC_ERROR_FILE": error_file, "TORCH_EDL_MASTER": "127.0.0.1:1"}
    script = "from torch_edl.api.ending import Ending\n"
    script += "Ending(lambda: None, lambda: False).watch()\nraise ValueError"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True)
    assert done.returncode == 1
    assert is_failing(error_file)
