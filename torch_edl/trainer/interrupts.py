"""Ctrl-C and SIGTERM in a process that trains alone and keeps checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

from torch_edl.processes.signals import StopSignals

log = logging.getLogger(__name__)

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupts:
    """Delays a signal to the end of the update: during one no checkpoint can be taken.

    Args:
        save: writes the last checkpoint.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._signals = StopSignals(())

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Within it the first signal waits for :meth:`heed`; the second one acts at once."""
        usual = [n for n, handler in _USUAL.items() if signal.getsignal(n) is handler]
        if threading.current_thread() is not threading.main_thread():
            usual = []
        try:
            with StopSignals(usual, wake=self._noted) as self._signals:
                yield
        finally:
            self._signals = StopSignals(())

    def heed(self) -> None:
        """Does between two updates what a signal asked for, after a last checkpoint.

        Raises:
            KeyboardInterrupt: the signal was SIGINT.
        """
        if self._signals.count:
            self._save()
            self._act()

    def _noted(self) -> None:
        if self._signals.count > 1:
            self._act()
        text = "%s: ending after this update, with a last checkpoint; again: at once"
        log.warning(text, self._signals.name)

    def _act(self) -> None:
        signals, self._signals = self._signals, StopSignals(())
        signals.restore()
        if signals.first == signal.SIGINT:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signals.first)
        threading.Event().wait()
