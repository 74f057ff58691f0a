"""Run a function in a child process, and start the child again after a crash.

In a container, the parent is process 1. The files that the child wrote in the container are still
there after a crash, and the container itself does not fail.
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
# A crash after this run time is counted as the first of a new series.
_GOOD_S = 600.0


def revived(run: Callable[[], int], *, final: Container[int]) -> int:
    """Run a function in a child process, and again after each crash.

    The caller must have only one thread. In the child, the signals :data:`STOPS` are blocked.

    Args:
        run: the function; returns the exit code of the child.
        final: exit codes that do not count as a crash.

    Returns:
        In the child, the result of ``run``. In the parent, the exit code of the last child: a code
        of ``final``, any code after a signal of :data:`STOPS`, or the code of the tenth crash in
        a row. 128 + N if signal N of :data:`STOPS` arrived while no child was running.
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
    """Wait for the end of a child; return its exit code and True if a stop signal arrived."""
    stopped = False
    while True:
        number = signal.sigwaitinfo(blocked).si_signo
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(pid, number)
            continue
        # One SIGCHLD may stand for several children, since process 1 inherits orphans.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
                return (code if code >= 0 else 128 - code), stopped
