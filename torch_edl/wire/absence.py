"""How long the other side of a connection has been away, and how long a master may be."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch_edl.environment import master_away_s

MASTER_AWAY_S = master_away_s()
"""Seconds for which the processes of a job wait for a master to be started again."""


class Absence:
    """Seconds for which calls were not answered, one after the other, while this process ran.

    A process that was paused (SIGSTOP, a container that is frozen) finds on waking that its call
    has failed, and that nobody has answered for long: it was not there to hear it.

    Args:
        attempt_s: the longest that an attempt takes, with the pause before it; what goes beyond
            was no waiting.
        clock: seconds that never go back.
    """

    def __init__(self, attempt_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt_s = attempt_s
        self._clock = clock
        self._at = clock()
        self.seconds = 0.0

    def answered(self) -> None:
        """The other side is there."""
        self._at, self.seconds = self._clock(), 0.0

    def failed(self) -> float:
        """An attempt failed; returns the seconds now."""
        before, self._at = self._at, self._clock()
        self.seconds += min(self._at - before, self._attempt_s)
        return self.seconds
