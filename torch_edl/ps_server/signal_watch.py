"""Watches for signals to end while the main thread waits for other processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

_LOOK_S = 0.1


class SignalWatch:
    """A context in which the first of some signals calls ``end``, in a thread.

    Args:
        signals: signals that are blocked in all threads.
    """

    def __init__(self, signals: Iterable[signal.Signals], end: Callable[[], None]) -> None:
        self._signals, self._end = tuple(signals), end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self.number = 0
        """Number of the received signal; 0 before."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            found = signal.sigtimedwait(self._signals, _LOOK_S)
            if found is not None:
                self.number = found.si_signo
                self._end()
                return
