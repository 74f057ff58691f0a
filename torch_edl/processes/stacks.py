"""What the threads of a process do: for a worker that makes no step."""

from __future__ import annotations

import faulthandler
import sys
import sysconfig
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

_OWN = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")
_PACKAGES = ("site-packages", "dist-packages")
_MOST_CHARS = 16_000


def all_stacks() -> str:
    """Returns the stacks of the threads that run code of others than Python and torch-edl, from the
    first frame of such code on: first that of the main thread. The calling thread is left out. If
    there is no such thread, returns the whole stacks of all others."""
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
    """The frames from the first that is neither Python's nor ours; empty: there is none."""
    for place, call in enumerate(stack):
        packaged = any(folder in call.filename for folder in _PACKAGES)
        if packaged or not call.filename.startswith(_OWN):
            return stack[place:]
    return ()


def dump_unless_called_within(seconds: float) -> None:
    """Writes the stacks of all threads to stderr if this function is not called again in time: a
    thread that keeps the interpreter's lock lets no other thread report. 0: cancels that."""
    if seconds:
        faulthandler.dump_traceback_later(seconds)
    else:
        faulthandler.cancel_dump_traceback_later()
