"""The clock of the job, on which silence is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# The loop asks for the time several times a second.
_LONGEST_S = 2.0


class Clock:
    """Seconds in which this process ran; thread-safe.

    A master that was paused (SIGSTOP, a machine that is moved to another host) has heard nobody for
    as long, and nobody is to be declared lost for that: time between two questions that is too
    long to be anything but a pause does not count. A lock of a store expires on a clock that goes
    on, so it is not to be compared with this one.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._asked = clock()
        self._paused = self._untold = 0.0

    def __call__(self) -> float:
        """The time now; never goes back."""
        with self._mutex:
            before, self._asked = self._asked, self._clock()
            pause = self._asked - before
            if pause > _LONGEST_S:
                self._paused += pause
                self._untold += pause
            return self._asked - self._paused

    def take_pause(self) -> float:
        """Seconds that did not count since the last call."""
        with self._mutex:
            pause, self._untold = self._untold, 0.0
            return pause
