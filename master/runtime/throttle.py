"""Limits on the frequency of work that takes long in a large job and delays calls of workers."""

from __future__ import annotations


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

    def is_due(self, now: float) -> bool:
        """Return whether the action may run now."""
        return now >= self._due

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
