"""Signals that ask a process to end: counted and named, and SIGTERM to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.waiting import HANG_S
from torch_edl.processes.signals import StopSignals, describe_exit


@pytest.fixture
def ignored() -> Iterator[signal.Signals]:
    """A signal that this process was started to ignore, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield signal.SIGHUP
    signal.signal(signal.SIGHUP, before)


def test_signals_are_counted_and_the_first_one_is_named() -> None:
    woken: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)
    with StopSignals([signal.SIGUSR1, signal.SIGUSR2], wake=lambda: woken.append(1)) as signals:
        assert (signals.count, signals.name, signals.exit_code) == (0, "", 0)
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (signals.count, signals.name, len(woken)) == (2, "SIGUSR2", 2)
        assert signals.exit_code == 128 + signal.SIGUSR2
    assert signal.getsignal(signal.SIGUSR1) is before


def test_an_ignored_signal_stays_ignored_unless_it_must_be_heard(ignored: signal.Signals) -> None:
    with StopSignals([ignored]) as signals:
        os.kill(os.getpid(), ignored)
        assert signals.count == 0
    with StopSignals([ignored], even_ignored=True) as signals:
        os.kill(os.getpid(), ignored)
        assert signals.count == 1
    assert signal.getsignal(ignored) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-40, "signal 40")],
)
def test_an_exit_code_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


GRACE_S = 0.5
# No byte code of the main thread runs meanwhile.
COMPILED = "hashlib.pbkdf2_hmac('sha1', b'', b'', (1 << 31) - 1)"
HEAD = f"""
import os, signal, sys, threading, time, hashlib
from torch_edl.processes.signals import GracefulExit
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
