"""The signals that ask a process to end: counted, and named."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch_edl.errors import UsageError


class StopSignals:
    """Counts the signals that ask this process to end, instead of raising in the middle of
    something. Use it from the main thread.

    Args:
        numbers: the signals to count.
        wake: called in the handler after a signal was counted.
        even_ignored: count signals as well that the process was started to ignore (``nohup``);
            they stay ignored otherwise.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        *,
        wake: Callable[[], None] | None = None,
        even_ignored: bool = False,
    ) -> None:
        self.count = 0
        self.first = 0
        """The first signal that came; 0: none came yet."""
        self._wake = wake
        self._before: dict[int, Any] = {
            number: handler
            for number in numbers
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN or even_ignored
        }

    @property
    def name(self) -> str:
        """Name of the first signal, ``SIGTERM``; empty before it came."""
        return signal.Signals(self.first).name if self.first else ""

    @property
    def exit_code(self) -> int:
        """What a process exits with that the first signal ended, 128 + N; 0 before it came."""
        return 128 + self.first if self.first else 0

    def install(self) -> None:
        """Handles the signals from now on."""
        for number in self._before:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restores the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
        if self._wake is not None:
            self._wake()

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def parse_signals(names: str, option: str) -> list[signal.Signals]:
    """The signals of a list such as ``SIGTERM,SIGINT``.

    Raises:
        UsageError: one of them does not exist.
    """
    found = []
    for name in filter(None, (word.strip() for word in names.split(","))):
        if name not in signal.Signals.__members__:
            raise UsageError(f"{option} {name}: no such signal; write SIGTERM,SIGINT")
        found.append(signal.Signals[name])
    return found


def describe_exit(code: int) -> str:
    """An exit code in words; -N: signal N ended the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a signal of real time has no name
        return f"signal {-code}"
