"""A child that leads a group of processes, and what is left of the group when it ends."""

from __future__ import annotations

import contextlib
import os
import signal


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to the whole group of a child; nothing happens if none of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def ended(pid: int) -> int | None:
    """The exit code (or signal) of a child that ended, without reaping it; None while it runs.

    Until it is reaped the number of its group is still its own: what it left can be ended.
    """
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_status
