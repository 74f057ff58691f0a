"""The end of a script's process, and its report to the job."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch_edl.errors import DeclaredLostError, DismissedError, EdlError
from torch_edl.processes.script_marks import ScriptMarks
from torch_edl.processes.signals import StopSignals

log = logging.getLogger(__name__)

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Ending:
    """Closes the job when its script ends.

    Args:
        close: closes the job in this process; may be called more than once.
        terminated: returns True if the process has received SIGTERM.
    """

    def __init__(self, close: Callable[[], None], terminated: Callable[[], bool]) -> None:
        self.failed = False
        """True if the script raised, exited with a code other than 0, or was dismissed."""
        self.last = False
        """True if no other process has the model."""
        self.exits = False
        """True if the process exits: its script begins no other training."""
        self._close = close
        self._terminated = terminated
        self._pid = os.getpid()
        self._error_before = getattr(sys, "last_value", None)  # of an earlier notebook cell
        self._exit = sys.exit
        self._watches = False
        self._loop_failed = False
        self._marks = ScriptMarks()

    @property
    def finished(self) -> bool:
        """Whether the script came to its end: it has not failed, and an error has not ended its
        newest loop, which the script may have caught."""
        return not self.failed and not self._loop_failed

    def watch(self) -> None:
        """Close the job when the script ends."""
        self._watches = True
        atexit.register(self._at_exit)
        # Exit handlers of Python do not learn the exit code. The node reports the exit code to
        # the master, but late.
        sys.exit = self._noted_exit

    def forget(self) -> None:
        """Undo :meth:`watch`, since the job is closed."""
        if self._watches:
            self._watches = False
            atexit.unregister(self._at_exit)
            if sys.exit == self._noted_exit:
                sys.exit = self._exit

    @contextlib.contextmanager
    def dismissal(self) -> Iterator[None]:
        """Return a context that closes the job and ends the process when DismissedError is raised.

        Raises:
            SystemExit: the process was dismissed, neither by SIGTERM nor because it was declared
                lost; the exit code is 0.
        """
        try:
            yield
        except DismissedError as error:
            log.info("leaving: %s", error)
            self.failed = True
            self._marks.end_loop()  # the job continues without this process, or is over
            self.last = error.last
            with contextlib.suppress(DismissedError):
                self._close()
            if isinstance(error, DeclaredLostError) or self._terminated():
                # The exit status shows the sender that the signal ended the process. The master
                # replaces a process that a signal has ended.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait()
            raise SystemExit(0) from None

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Return a context for a loop over a loader. If the process ends inside it, the job
        counts a failure, even if the exit code is 0."""
        self._loop_failed = False
        self._marks.begin_loop()
        try:
            yield
        except GeneratorExit:  # the script left the loop
            self._marks.end_loop()
            raise
        except BaseException as error:
            self._loop_failed = True
            self._marks.fail_loop(error)
            raise
        self._marks.end_loop()

    def _noted_exit(self, status: Any = None, /) -> NoReturn:
        if status not in (None, 0):
            self.failed = True
        self._exit(status)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child
        self.exits = True
        error = getattr(sys, "last_value", None)
        if error is not self._error_before:
            self.failed = True  # the script raised
            self._marks.fail()
            _tell_launcher(error)
        try:
            # A dismissal during close() needs no second exit.
            with contextlib.suppress(SystemExit):
                self._close()
        except EdlError as error:
            # Python would exit with code 0, which reports success.
            log.error("%s", error)
            _tell_launcher(error)
            logging.shutdown()
            sys.stdout.flush()
            os._exit(1)


class Interrupts:
    """Delays Ctrl-C and SIGTERM to the end of an update, since no checkpoint can be taken during
    an update. For a process that trains alone and writes checkpoints.

    Args:
        save: writes the last checkpoint.
        active: False: signals are not delayed.
    """

    def __init__(self, save: Callable[[], None], *, active: bool) -> None:
        self._save = save
        self._active = active
        self._signals = StopSignals(())

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Return a context that delays the first signal until :meth:`heed`; a second signal takes
        effect immediately."""
        usual = [n for n, handler in _USUAL.items() if signal.getsignal(n) is handler]
        if not self._active or threading.current_thread() is not threading.main_thread():
            usual = []
        try:
            with StopSignals(usual, wake=self._noted) as self._signals:
                yield
        finally:
            self._signals = StopSignals(())

    def heed(self) -> None:
        """Write a last checkpoint and act on a delayed signal; must be called between two updates.

        Raises:
            KeyboardInterrupt: SIGINT was received.
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


def _tell_launcher(error: BaseException | None) -> None:
    """Write an exception to the error file of torch.distributed.elastic, in the format of torch's
    ``record``. A file that ``record`` has written is kept."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not file or os.path.exists(file) or not isinstance(error, Exception):
        return
    told = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {
            "py_callstack": "".join(traceback.format_exception(error)),
            "timestamp": str(int(time.time())),
        },
    }
    # If the disk is full, the exit code still reports the failure.
    with contextlib.suppress(OSError), open(file, "w", encoding="utf-8") as out:
        json.dump({"message": told}, out)
