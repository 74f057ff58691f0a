"""SIGTERM to real processes, whatever they do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.waiting import HANG_S

GRACE_S = 0.5
# No byte code of the main thread runs meanwhile.
COMPILED = "hashlib.pbkdf2_hmac('sha1', b'', b'', (1 << 31) - 1)"
HEAD = f"""
import os, signal, sys, threading, time, hashlib
from torch_edl.processes.graceful_exit import GracefulExit
departure = GracefulExit()
asked = threading.Event()
assert departure.listen()
begin = lambda: departure.begin({GRACE_S}, asked.set)
ready = lambda: print("ready", flush=True)
"""


def end(program: str, number: int = signal.SIGTERM) -> tuple[int, float, str]:
    """Exit code, seconds from the signal to the end, and the output after it. A process that does
    not end would stay for longer than a test may take."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANG_S)
    return process.returncode, time.monotonic() - began, output


@pytest.mark.parametrize(
    "busy",
    [
        "time.sleep(1000)",
        COMPILED,
        "threading.Lock().acquire() and threading.Event().wait()",
    ],
)
def test_a_process_with_nothing_in_hand_ends_at_once(busy: str) -> None:
    assert end(f"ready(); {busy}")[0] == 143


@pytest.mark.parametrize("busy", ["time.sleep(1000)", COMPILED])
def test_a_process_that_is_blocked_ends_with_its_grace(busy: str) -> None:
    code, seconds, _ = end(f"begin(); ready(); {busy}")
    assert code == 143
    assert seconds >= GRACE_S


def test_a_process_that_hears_it_leaves_by_itself() -> None:
    code, _, output = end("begin(); ready(); asked.wait(); print('handed back'); sys.exit(3)")
    assert (code, output) == (3, "handed back\n")


def test_a_wake_that_blocks_does_not_keep_the_process() -> None:
    program = f"departure.begin({GRACE_S}, lambda: time.sleep(1000)); ready(); time.sleep(1000)"
    assert end(program)[0] == 143


def test_what_was_printed_is_kept() -> None:
    """Also of a stream that has a buffer."""
    program = """
sys.stdout = open(1, 'w', closefd=False)
print('words'); os.write(1, b'ready\\n'); time.sleep(1000)
"""
    assert end(program)[2] == "words\n"


def test_a_handler_of_the_program_stays() -> None:
    program = """
departure.close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
assert not GracefulExit().listen()
ready(); time.sleep(1000)
"""
    assert end(program)[0] == 7


def test_after_the_end_sigterm_is_what_it_was() -> None:
    assert end("begin(); departure.close(); ready(); time.sleep(1000)")[0] == -signal.SIGTERM


def test_other_signals_are_none_of_it() -> None:
    program = """
heard = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: heard.set())
begin(); ready()
while not heard.is_set():
    time.sleep(0.01)
assert not departure.asked.is_set()
os.kill(os.getpid(), signal.SIGTERM)
asked.wait(); sys.exit(5)
"""
    assert end(program, signal.SIGUSR1)[0] == 5


def test_a_forked_child_ends_by_itself_and_not_its_parent() -> None:
    program = """
begin()
child = os.fork()
if child == 0:
    time.sleep(1000)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
assert not departure.asked.is_set()
ready(); time.sleep(1000)
"""
    assert end(program)[0] == 143
