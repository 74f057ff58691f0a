"""A child where its parent lives, where the parent is gone already, and with no such command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.waiting import HANG_S
from torch_edl.processes import exec_child


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)


def test_a_command_runs_with_its_arguments_while_its_parent_lives() -> None:
    source = "import os, sys; print(sys.argv[1:], os.getppid()); sys.exit(3)"
    done = run(exec_child.words([sys.executable, "-c", source, "one", "two"]))
    assert (done.returncode, done.stdout) == (3, f"['one', 'two'] {os.getpid()}\n")


def test_a_parent_that_died_before_the_kernel_was_told_ends_the_child() -> None:
    words = exec_child.words(["true"], signal.SIGTERM)
    words[words.index(str(os.getpid()))] = "1" if os.getpid() != 1 else "2"
    assert run(words).returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    "prevent",
    [
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    ],
    ids=["ignored", "blocked"],
)
def test_a_signal_that_the_parent_does_not_take_ends_the_child(
    prevent: Callable[[], object],
) -> None:
    words = exec_child.words(["sleep", "5"], signal.SIGTERM)
    words[words.index(str(os.getpid()))] = "1" if os.getpid() != 1 else "2"
    done = subprocess.run(words, preexec_fn=prevent, timeout=HANG_S, check=False)
    assert done.returncode == -signal.SIGTERM


def test_a_command_that_cannot_be_started_is_named() -> None:
    done = run(exec_child.words(["no-such-command"]))
    assert done.returncode == 127
    assert done.stderr == "no-such-command: cannot be started: No such file or directory\n"
