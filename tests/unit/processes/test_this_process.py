"""The stacks of a process, its place in memory, and its restart after a crash: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.waiting import HANG_S, wait_for
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


_PROGRAM = """
import os, pathlib, signal, sys, time
from torch_edl.processes.this_process import STOPS, revived

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


def test_a_process_leaves_after_its_threads_and_exit_functions() -> None:
    program = (
        "import atexit, sys, threading, time\n"
        "from torch_edl.processes.this_process import leave\n"
        "class Kept:\n"
        "    def __del__(self):\n"
        "        print('taken apart')\n"
        "kept = Kept()\n"
        "atexit.register(print, 'exit function')\n"
        "go = threading.Event()\n"
        "threading.Thread(target=lambda: (go.wait(), print('thread'))).start()\n"
        "threading.Timer(0.1, go.set).start()\n"
        "leave(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "thread\nexit function\n", "")
