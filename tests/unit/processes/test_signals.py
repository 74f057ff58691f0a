from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

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
