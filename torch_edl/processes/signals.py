"""Signals that ask a process to end: counting, parsing and naming them, and an orderly exit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch_edl.errors import UsageError

log = logging.getLogger(__name__)

LEFT = 128 + signal.SIGTERM
"""Exit code of a process that left because of SIGTERM, or whose grace period was over."""
# What :meth:`GracefulExit.leave` writes to the socket of the signals; no signal has this number.
_NOTICE = 0
# A blocked thread may hold the lock of a stream; flushing is abandoned after this time.
_FLUSH_S = 0.5


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


class GracefulExit:
    """Reacts to SIGTERM, or to a notice of preemption, while the main thread is busy, and ends the
    process after its grace.

    The kernel delivers the signal to compiled code, which writes to a socket, and a thread reads
    from the socket. The signal is therefore noticed even while the main thread is in a long call.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        """Set when SIGTERM or a notice was received."""
        self.notice = ""
        """Text of the notice of preemption; empty if there was none, or SIGTERM came first."""
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._lock = threading.Lock()
        self._mask = threading.local()
        self._grace_s = 0.0
        self._wake: Callable[[], None] = lambda: None

    def listen(self) -> bool:
        """Start to listen for SIGTERM; until :meth:`begin` was called, SIGTERM ends the process.

        Return False if the program has its own handler, which stays installed, or if the caller is
        not the main thread."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return False
        signal.signal(signal.SIGTERM, self._heard)
        before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop of the program already receives all signals
            signal.set_wakeup_fd(before)
        # A forked child has no work to return to the master: SIGTERM ends the child as usual, from
        # its first instruction on, and does not affect this process.
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._forget_forked
        )
        threading.Thread(target=self._run, name="departure", daemon=True).start()
        return True

    def begin(self, grace_s: float, wake: Callable[[], None]) -> None:
        """Allow the process time to finish and return its work after SIGTERM.

        Args:
            grace_s: seconds after the signal at which the process ends, whatever it is doing.
            wake: called in a new thread when the signal arrives; tells the process to leave.
        """
        with self._lock:
            self._grace_s, self._wake = grace_s, wake

    def leave(self, notice: str) -> None:
        """Leave as after SIGTERM, because of a notice of preemption. The exit code is 0 if the work
        is returned within the grace period."""
        if not self.asked.is_set():
            self.notice = notice
            self._write.send(bytes([_NOTICE]))

    @property
    def exit_code(self) -> int:
        """Exit code of a process that has returned its work."""
        return 0 if self.notice else LEFT

    def close(self) -> None:
        """Stop listening. A process that already received SIGTERM still leaves."""
        self._forget()
        self._write.close()

    def _heard(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the socket is full: an earlier signal was recorded
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
        while not {signal.SIGTERM, _NOTICE}.intersection(heard := self._read.recv(64)):
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
        # Unfinished work is abandoned: the master notices the exit and reassigns the work.
        text = f"unfinished after the grace period of {grace_s:g} s: other workers do the rest"
        text = f"{self.notice or 'SIGTERM'}: {text}" if grace_s > 0 else ""
        words = threading.Thread(target=_last_words, args=(text,), daemon=True)
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
