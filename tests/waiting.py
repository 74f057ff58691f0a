"""How tests wait for what processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

HANG_S = 100.0
"""No test waits longer for one thing. A time that only a hang exceeds: where all cores are busy,
what takes a second takes half a minute."""
COMMAND_S = 280.0
"""No test waits longer for a command that runs a job. Several processes start one after the other,
and each may need the better part of ``HANG_S`` to import torch."""
_POLL_S = 0.02


def wait_for(condition: Callable[[], Any], what: str | Callable[[], object] = "") -> Any:
    """What ``condition`` returns once it is true.

    Args:
        what: is waited for; or a function that says how things are if it does not come about.
    """
    end = time.monotonic() + HANG_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"it did not come about: {what() if callable(what) else what}")
        time.sleep(_POLL_S)
    return found


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached all threads of a process; ``kill`` returns earlier."""
    try:
        states = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return bool(states) and all(state.rpartition(")")[2].split()[0] == "T" for state in states)


def is_running(pid: int) -> bool:
    """Whether a process of this pid runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
