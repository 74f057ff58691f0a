"""The clock of a job, which measures the silence of processes, and limits on the frequency of work
that takes long in a large job."""

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


class Throttle:
    """Limits how often an action runs, and its share of the time.

    Args:
        every_s: minimum seconds between two runs.
        times: minimum pause after a run, as a multiple of its duration.
        longest_s: upper bound of that pause, in seconds.
    """

    def __init__(self, *, every_s: float, times: float, longest_s: float) -> None:
        self._every_s = every_s
        self._times = times
        self._longest_s = longest_s
        self._due = float("-inf")

    def until_due(self, now: float) -> float:
        """Return the seconds until the action may run; 0 if it may run now."""
        return max(0.0, self._due - now)

    def took(self, seconds: float, now: float) -> None:
        """Record that a run of that duration ended at ``now``."""
        self._due = now + max(self._every_s, min(self._times * seconds, self._longest_s))


def of_ticks() -> Throttle:
    """Return the limit for ticks of the job: each report of a task requests one."""
    return Throttle(every_s=0.0, times=4, longest_s=0.5)


def of_notes() -> Throttle:
    """Return the limit for writes of the job's state. After a restart, workers report what it
    lacks."""
    return Throttle(every_s=1.0, times=9, longest_s=10.0)
