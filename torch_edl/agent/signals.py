"""The signals that end an agent, and the names of those that ended a worker."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from torch_edl.errors import UsageError


class StopSignals:
    """Counts the signals that ask to stop, instead of raising in the middle of something."""

    def __init__(self, names: str, wake: Callable[[], None]) -> None:
        self.count = 0
        self.first = 0
        self._wake = wake
        self._numbers: list[signal.Signals] = []
        for name in filter(None, (word.strip() for word in names.split(","))):
            number = getattr(signal, name, None)
            if not isinstance(number, signal.Signals):
                raise UsageError(
                    f"--signals-to-handle {name}: no such signal; write SIGTERM,SIGINT"
                )
            self._numbers.append(number)
        self._before = {number: signal.getsignal(number) for number in self._numbers}

    def install(self) -> None:
        """Takes the signals; who started us with one ignored (nohup) wants it ignored."""
        for number in self._numbers:
            ignored = self._before[number] is signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else self._handle)

    def restore(self) -> None:
        """Gives them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def note(self, number: int) -> None:
        """A signal came."""
        self.count += 1
        self.first = self.first or number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.note(number)
        self._wake()


def describe(code: int) -> str:
    """An exit code in words; -N: signal N."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
