"""Measure how long the other side of a connection has been away."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch_edl.config.environment import master_away_s

MASTER_AWAY_S = master_away_s()
"""Seconds for which the processes of a job wait for a master to be restarted."""


class Absence:
    """Seconds for which consecutive calls have failed, without the time this process was paused.

    A process that was paused (SIGSTOP, frozen container) finds after waking that its call has
    failed long ago, although the other side was not away.

    Args:
        attempt_s: longest duration of an attempt, with the pause before it. Time beyond this limit
            is not counted.
        clock: monotonic clock in seconds.
    """

    def __init__(self, attempt_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt_s = attempt_s
        self._clock = clock
        self._at = clock()
        self.seconds = 0.0

    def answered(self) -> None:
        """Record that the other side answered: reset the time to 0."""
        self._at, self.seconds = self._clock(), 0.0

    def failed(self) -> float:
        """Record that an attempt failed; return the seconds of absence."""
        before, self._at = self._at, self._clock()
        self.seconds += min(self._at - before, self._attempt_s)
        return self.seconds
