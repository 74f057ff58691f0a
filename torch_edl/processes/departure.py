"""How a process leaves that gets SIGTERM: in an orderly way, and within its grace period."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

LEFT = 128 + signal.SIGTERM
"""The exit code of a process that left because of SIGTERM."""
# Whoever blocks the process may hold the lock of a stream: it is not waited for longer.
_FLUSH_S = 0.5


class Departure:
    """Hears SIGTERM, whatever the main thread does, and ends the process when its grace is over.

    The kernel hands the signal to compiled code, which writes to a socket; a thread reads there. So
    the signal is also heard by a process whose main thread is within a call that takes long.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        """Somebody sent SIGTERM."""
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._lock = threading.Lock()
        self._mask = threading.local()
        self._grace_s = 0.0
        self._wake: Callable[[], None] = lambda: None

    def listen(self) -> bool:
        """Listens from now on; False: the program has a handler of its own, which stays, or this is
        not the main thread. While nothing is in hand, see :meth:`begin`, the process ends at once.
        """
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return False
        signal.signal(signal.SIGTERM, self._heard)
        before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop of the program listens to all signals
            signal.set_wakeup_fd(before)
        # A child that was forked has nothing to hand back: SIGTERM ends it as usual, from its first
        # instruction on, and is no matter of this process.
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._forget_forked
        )
        threading.Thread(target=self._run, name="departure", daemon=True).start()
        return True

    def begin(self, grace_s: float, wake: Callable[[], None]) -> None:
        """From now on there is something to finish and to hand back.

        Args:
            grace_s: the process ends so many seconds after the signal, whatever it does then.
            wake: called in a thread when the signal comes: the process is to leave.
        """
        with self._lock:
            self._grace_s, self._wake = grace_s, wake

    def close(self) -> None:
        """Listens no longer. A process that was asked to leave does so all the same."""
        self._forget()
        self._write.close()

    def _heard(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # it was heard before
            self._write.send(bytes([signal.SIGTERM]))

    def _forget(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == self._heard:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _block(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _forget_forked(self) -> None:
        self._forget()
        self._unblock()

    def _run(self) -> None:
        while signal.SIGTERM not in (heard := self._read.recv(64)):
            if not heard:
                return
        over = time.monotonic()
        with self._lock:
            self.asked.set()
            grace_s, wake = self._grace_s, self._wake
        if grace_s > 0:
            threading.Thread(target=wake, name="leaving", daemon=True).start()
            over += grace_s
            time.sleep(max(0.0, over - time.monotonic()))
        # What is in hand is abandoned: the master hears of the end, and others do it.
        text = "SIGTERM: not done after the grace period of %g s: leaving without what is in hand"
        words = threading.Thread(
            target=_last_words, args=(text % grace_s if grace_s > 0 else "",), daemon=True
        )
        words.start()
        words.join(_FLUSH_S)
        os._exit(LEFT)


def _last_words(text: str) -> None:
    if text:
        log.warning(text)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
