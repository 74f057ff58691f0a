"""Ctrl-C and SIGTERM in a process that trains alone and keeps checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupts:
    """Puts a signal off to the end of the update: in the middle of one no checkpoint can be taken.

    Args:
        save: writes the last checkpoint.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._number = 0
        self._before: dict[int, Any] = {}

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Within it the first signal waits for :meth:`heed`; the second one acts at once."""
        if threading.current_thread() is threading.main_thread():
            for number, usual in _USUAL.items():
                if signal.getsignal(number) is usual:
                    self._before[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            self._restore()

    def heed(self) -> None:
        """Between two updates: does what the signal asked for, with a last checkpoint before.

        Raises:
            KeyboardInterrupt: it was SIGINT.
        """
        if self._number:
            self._save()
            self._act(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number:
            self._act(number)
        self._number = number
        name = signal.Signals(number).name
        log.warning("%s: ending after this update, with a last checkpoint; again: at once", name)

    def _act(self, number: int) -> None:
        self._restore()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        os.kill(os.getpid(), number)
        threading.Event().wait()

    def _restore(self) -> None:
        self._number = 0
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
