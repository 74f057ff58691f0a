"""A process that is started again in place: its codes, signals and orphans, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import HANG_S, wait_for

_PROGRAM = """
import os, pathlib, signal, sys, time
from torch_edl.processes.restart_on_crash import STOPS, revived

def run():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    log = pathlib.Path(sys.argv[1])
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    starts = len(log.read_text().splitlines())
    CODE

sys.exit(revived(run, final=(0, 2)))
"""


def start(tmp_path: Path, code: str) -> subprocess.Popen[bytes]:
    program = _PROGRAM.replace("CODE", code)
    return subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "starts")])


def starts(tmp_path: Path) -> list[int]:
    """The process ids, in order."""
    log = tmp_path / "starts"
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_crash_is_not_the_end_and_a_final_code_is(tmp_path: Path) -> None:
    code = "os.kill(os.getpid(), 9) if starts == 1 else None\n    return 75 if starts == 2 else 2"
    assert start(tmp_path, code).wait(HANG_S) == 2
    assert len(set(starts(tmp_path))) == 3


def test_a_signal_is_handed_on_and_nothing_is_started_again(tmp_path: Path) -> None:
    parent = start(tmp_path, "signal.signal(15, lambda *_: sys.exit(143))\n    time.sleep(1000)")
    wait_for(lambda: starts(tmp_path))
    [child] = starts(tmp_path)
    # The child may not have its handler yet; then the signal itself ends it.
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(HANG_S) == 143
    assert starts(tmp_path) == [child]
    assert not Path(f"/proc/{child}").exists()


def test_a_signal_ends_the_pause_after_a_crash(tmp_path: Path) -> None:
    parent = start(tmp_path, "return 75")
    wait_for(lambda: len(starts(tmp_path)) == 4)  # then the pause is 4 s
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(HANG_S) in (143, 75)
    assert len(starts(tmp_path)) <= 5


def test_orphans_of_others_are_reaped_by_process_1(tmp_path: Path) -> None:
    """Orphans of a container are inherited by its process 1."""
    code = (
        "pid = os.fork()\n"
        "    if pid == 0:\n"
        "        if os.fork() == 0: os._exit(5)\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    return 0"
    )
    adopt = "import ctypes; ctypes.CDLL(None).prctl(36, 1)\n"  # PR_SET_CHILD_SUBREAPER
    program = adopt + _PROGRAM.replace("CODE", code)
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "starts")])
    assert parent.wait(HANG_S) == 0
    assert os.getpid() not in starts(tmp_path)
