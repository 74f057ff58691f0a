"""Count, parse and name the signals that ask a process to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch_edl.errors import UsageError


class StopSignals:
    """Counts stop signals instead of raising in the middle of an operation.

    Must be used from the main thread.

    Args:
        numbers: the signals to count.
        wake: called in the signal handler after a signal was counted.
        even_ignored: also count signals that were ignored when the process started (``nohup``);
            otherwise these signals stay ignored.
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
        """Number of the first signal received; 0 before."""
        self._wake = wake
        self._before: dict[int, Any] = {
            number: handler
            for number in numbers
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN or even_ignored
        }

    @property
    def name(self) -> str:
        """Name of the first signal, such as ``SIGTERM``; empty before."""
        return signal.Signals(self.first).name if self.first else ""

    @property
    def exit_code(self) -> int:
        """Exit code of a process that ends because of the first signal, 128 + N; 0 before."""
        return 128 + self.first if self.first else 0

    def install(self) -> None:
        """Install the signal handlers."""
        for number in self._before:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous signal handlers."""
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
    """Parse a list of signals such as ``SIGTERM,SIGINT``.

    Raises:
        UsageError: a signal does not exist.
    """
    found = []
    for name in filter(None, (word.strip() for word in names.split(","))):
        if name not in signal.Signals.__members__:
            raise UsageError(f"{option} {name}: no such signal; write SIGTERM,SIGINT")
        found.append(signal.Signals[name])
    return found


def describe_exit(code: int) -> str:
    """Describe an exit code in words; -N means that signal N ended the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # real-time signals have no name
        return f"signal {-code}"
