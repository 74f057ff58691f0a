"""The clock of a job, which measures the silence of processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds between two calls above which the process was paused: the loop calls several times a
# second.
_LONGEST_S = 2.0


class Clock:
    """Seconds for which this process ran; thread-safe.

    A paused master (SIGSTOP, a migrated machine) receives no heartbeats, and no process is to be
    declared lost for that: an interval between two calls that only a pause explains does not count.
    The lock of a store expires on a clock that is not paused, so the two are not comparable.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._asked = clock()
        self._paused = self._untold = 0.0

    def __call__(self) -> float:
        """Return the current time; it never decreases."""
        with self._mutex:
            before, self._asked = self._asked, self._clock()
            pause = self._asked - before
            if pause > _LONGEST_S:
                self._paused += pause
                self._untold += pause
            return self._asked - self._paused

    def take_pause(self) -> float:
        """Return the seconds of pauses since the last call."""
        with self._mutex:
            pause, self._untold = self._untold, 0.0
            return pause
