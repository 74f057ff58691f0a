"""How the process of a script ends, and what its job hears of it."""

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
from torch_edl.processes.signals import StopSignals

log = logging.getLogger(__name__)

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Ending:
    """Ends a job with its script.

    Args:
        close: ends this process's part in the job; may be called more than once.
        terminated: whether somebody sent SIGTERM.
    """

    def __init__(self, close: Callable[[], None], terminated: Callable[[], bool]) -> None:
        self.finished = True
        """The script came to its end, as far as one can see."""
        self.last = False
        """Nobody else has the model."""
        self._close = close
        self._terminated = terminated
        self._pid = os.getpid()
        self._error_before = getattr(sys, "last_value", None)  # a notebook's, of an earlier cell
        self._exit = sys.exit
        self._watches = False

    def watch(self) -> None:
        """From now on the end of the script is that of the job."""
        self._watches = True
        atexit.register(self._at_exit)
        # Python tells nobody at exit that the exit code will not be 0. The master hears it from
        # the agent, but late.
        sys.exit = self._noted_exit

    def forget(self) -> None:
        """The job is closed."""
        if self._watches:
            self._watches = False
            atexit.unregister(self._at_exit)
            if sys.exit == self._noted_exit:
                sys.exit = self._exit

    @contextlib.contextmanager
    def dismissal(self) -> Iterator[None]:
        """Ends the process in an orderly way where the job continues without it."""
        try:
            yield
        except DismissedError as error:
            log.info("leaving: %s", error)
            self.finished = False
            self.last = error.last
            self._close()
            if isinstance(error, DeclaredLostError) or self._terminated():
                # As if the signal had not been caught: who sent it sees what became of it. An
                # agent replaces who ends by a signal.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait()
            raise SystemExit(0) from None

    def _noted_exit(self, status: Any = None, /) -> NoReturn:
        if status not in (None, 0):
            self.finished = False
        self._exit(status)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a child that was forked ends
        error = getattr(sys, "last_value", None)
        if error is not self._error_before:
            self.finished = False  # the script raised
            _tell_launcher(error)
        try:
            # A dismissal has ended what there is to end.
            with contextlib.suppress(SystemExit):
                self._close()
        except EdlError as error:
            # Python would end with exit code 0, and the job would have gone well.
            log.error("%s", error)
            _tell_launcher(error)
            logging.shutdown()
            sys.stdout.flush()
            os._exit(1)


class Interrupts:
    """Ctrl-C and SIGTERM in a process that trains alone and keeps checkpoints: delays a signal to
    the end of the update, since during one no checkpoint can be taken.

    Args:
        save: writes the last checkpoint.
        active: whether this is such a process.
    """

    def __init__(self, save: Callable[[], None], *, active: bool) -> None:
        self._save = save
        self._active = active
        self._signals = StopSignals(())

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Within it the first signal waits for :meth:`heed`; the second one acts at once."""
        usual = [n for n, handler in _USUAL.items() if signal.getsignal(n) is handler]
        if not self._active or threading.current_thread() is not threading.main_thread():
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


def _tell_launcher(error: BaseException | None) -> None:
    """Leaves an exception where agents of torch.distributed.elastic, ours too, look for it, in the
    form of torch's ``record``; a main function that is wrapped by that has done so itself."""
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
    # A full disk: the exit code says enough.
    with contextlib.suppress(OSError), open(file, "w", encoding="utf-8") as out:
        json.dump({"message": told}, out)
