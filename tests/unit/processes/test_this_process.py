"""The stacks of a process, told by one of its threads, and its place in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torch_edl.processes import this_process
from torch_edl.processes.this_process import all_stacks


def wait_here(begun: threading.Event, end: threading.Event) -> None:
    begun.set()
    end.wait()


def test_the_stacks_of_all_others_the_main_thread_first() -> None:
    begun, end = threading.Event(), threading.Event()
    other = threading.Thread(target=wait_here, args=(begun, end), name="patient")
    other.start()
    begun.wait()
    told: list[str] = []

    def tell() -> None:
        told.append(all_stacks())

    teller = threading.Thread(target=tell, name="teller")
    teller.start()
    teller.join()
    end.set()
    other.join()
    (text,) = told
    assert text.startswith("Thread MainThread:\n")
    assert "in test_the_stacks_of_all" in text.partition("Thread patient:")[0]
    assert "in wait_here" in text.partition("Thread patient:")[2]
    assert "Thread teller" not in text
    assert "threading.py" not in text.partition("in wait_here")[0].partition("Thread patient:")[2]


BUSY = """
import ctypes, threading, time
from torch_edl.processes.this_process import dump_unless_called_within

dump_unless_called_within(0.2)
library = ctypes.PyDLL(None)  # keeps the lock of the interpreter in a call

def never_lets_go():
    library.usleep(900_000)

never_lets_go()
dump_unless_called_within(0.0)
"""


def test_a_thread_that_keeps_the_interpreter_is_found_from_outside() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    assert "in never_lets_go" in done.stderr


SCORE = Path("/proc/self/oom_score_adj")


def test_the_score_is_as_before_afterwards() -> None:
    before = SCORE.read_text()
    with this_process.expendable():
        assert SCORE.read_text() == "1000\n"
    assert SCORE.read_text() == before
    with pytest.raises(KeyError), this_process.expendable():
        raise KeyError
    assert SCORE.read_text() == before


def test_without_such_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(this_process, "_OOM_SCORE", tmp_path / "none" / "score")
    with this_process.expendable():
        pass
