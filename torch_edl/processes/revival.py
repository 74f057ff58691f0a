"""A process that is started again when it crashes: by its parent, which does nothing else.

In a container the parent is process 1. What the process keeps on the disk of the container is there
for the next one, and the container itself does not fail.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Container

log = logging.getLogger(__name__)

STOPS = (signal.SIGTERM, signal.SIGINT)
_MOST_IN_A_ROW = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
# A process that ran for so long was a good one: its crash is the first of a new row.
_GOOD_S = 600.0


def revived(run: Callable[[], int], *, final: Container[int]) -> int:
    """Run a function in a child process, and again after a crash.

    Must be called while the process has one thread. The child gets :data:`STOPS` blocked.

    Args:
        run: returns the exit code of the child.
        final: exit codes that are no crash.

    Returns:
        The exit code of ``run``; in this process that of the last child: one of ``final``, any code
        after a signal of :data:`STOPS`, or that of the tenth crash in a row.
    """
    blocked = {*STOPS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    crashes = 0
    while True:
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            return run()
        code, stopped = _outlive(pid, blocked)
        if stopped or code in final:
            return code
        crashes = 1 if time.monotonic() - began >= _GOOD_S else crashes + 1
        if crashes >= _MOST_IN_A_ROW:
            log.error("ended %d times in a row, the last time with exit code %d", crashes, code)
            return code
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (crashes - 1), _LONGEST_PAUSE_S)
        log.error("ended with exit code %d; started again in %.1f s", code, pause_s)
        if (found := signal.sigtimedwait(STOPS, pause_s)) is not None:
            return 128 + found.si_signo


def _outlive(pid: int, blocked: set[signal.Signals]) -> tuple[int, bool]:
    """Wait for the end of a child; returns its exit code, and whether it was told to end."""
    stopped = False
    while True:
        number = signal.sigwaitinfo(blocked).si_signo
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(pid, number)
            continue
        # One signal may stand for several children: process 1 inherits the orphans of others.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
                return (code if code >= 0 else 128 - code), stopped
