"""What a process does with itself: its log, its output, its stacks, and its restart after a
crash."""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import io
import logging
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, NoReturn

log = logging.getLogger(__name__)

# Errors of a full disk, an exceeded quota and a closed terminal.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_OWN_FILES = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")
_PACKAGES = ("site-packages", "dist-packages")
_MOST_CHARS = 16_000

STOPS = (signal.SIGTERM, signal.SIGINT)
_MOST_IN_A_ROW = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
# A crash after this run time is counted as the first of a new series.
_GOOD_S = 600.0


def setup_logging(role: str, id: int) -> None:
    """Set up logging to stderr, with the prefix ``role-id`` in each line.

    Output to stdout and stderr is dropped if the disk is full, so that a print in the user's code
    does not fail.
    """
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(_Lossy(fd, "wb", closefd=False), "utf-8", "replace", write_through=True)
        for fd in (1, 2)
    )
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s.%(msecs)03d {role}-{id} %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


def outlive_terminal() -> None:
    """Drop output to a terminal that was closed, instead of raising OSError.

    A closed terminal also sends a signal, and that signal ends the process.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            lossy = _Lossy(stream.fileno(), "wb", closefd=False)
            wrapped = io.TextIOWrapper(lossy, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, wrapped)


class _Lossy(io.FileIO):
    """A file that drops data if the disk is full or the terminal closed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return len(data)


def configure_torch() -> None:
    """Set variables that torch reads at its import, unless the user has set them.

    - ``OMP_WAIT_POLICY=passive``: threads of OpenMP sleep while they wait. By default, a thread of
      libgomp that has no work spins for some milliseconds, on a core that the table, the loader or
      another process needs. A loop of small layers and a sort, with two threads on two cores that
      other processes used as well, took 85 ms of CPU per step, and 14 ms with sleeping threads.
    - ``THP_MEM_ALLOC_ENABLE=1``: tensors of more than 2 MB are in huge pages. DeepFM with batches
      of 4,096 took 4 to 9% less CPU (measured with 4 workers on 2 cores).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def leave(code: int) -> NoReturn:
    """End this process as Python does: after its other threads, with the functions of
    :mod:`atexit`. But take no module apart, which costs half a second of CPU after an import of
    torch; processes of :mod:`multiprocessing` end in the same way."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    leave_now(code)


def leave_now(code: int) -> NoReturn:
    """End this process at once, whatever its other threads do."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
            stream.flush()
    os._exit(code)


def all_stacks() -> str:
    """Return the stacks of the threads that run code of others than Python and torch-edl, from the
    first frame of such code on, that of the main thread first; without such a thread, the whole
    stacks of all other threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    stacks = [
        (ident != main, names.get(ident, str(ident)), traceback.extract_stack(frame))
        for ident, frame in sys._current_frames().items()
        if ident != own
    ]
    of_others = [(later, name, rest) for later, name, st in stacks if (rest := _foreign(st))]
    shown: list[tuple[bool, str, Sequence[traceback.FrameSummary]]] = [*(of_others or stacks)]
    shown.sort(key=lambda each: each[:2])
    whole = "".join(
        f"Thread {name}:\n{''.join(traceback.format_list(list(stack)))}" for _, name, stack in shown
    )
    return whole if len(whole) <= _MOST_CHARS else f"{whole[:_MOST_CHARS]}\n  ...\n"


def _foreign(stack: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    for place, call in enumerate(stack):
        packaged = any(folder in call.filename for folder in _PACKAGES)
        if packaged or not call.filename.startswith(_OWN_FILES):
            return stack[place:]
    return ()


def dump_unless_called_within(seconds: float) -> None:
    """Write the stacks of all threads to stderr if this function is not called again in time: a
    thread that keeps the interpreter's lock lets no other thread report. 0 cancels that."""
    if seconds:
        faulthandler.dump_traceback_later(seconds)
    else:
        faulthandler.cancel_dump_traceback_later()


def revived(run: Callable[[], int], *, final: Container[int]) -> int:
    """Run a function in a child process, and again after each crash.

    In a container, the parent is process 1. The files that the child wrote in the container are
    still there after a crash, and the container itself does not fail.

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
