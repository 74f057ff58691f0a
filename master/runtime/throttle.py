"""How often the master does what takes long in a large job, while calls of the workers wait."""

from __future__ import annotations


class Throttle:
    """Says when it is time again: at most so often, and never for more than a share of the time.

    Args:
        every_s: the shortest time between two.
        times: how many times as long as one took nothing is due.
        longest_s: what that comes to at most.
    """

    def __init__(self, *, every_s: float, times: float, longest_s: float) -> None:
        self._every_s = every_s
        self._times = times
        self._longest_s = longest_s
        self._due = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether it is time."""
        return now >= self._due

    def until_due(self, now: float) -> float:
        """Seconds until it is time; 0: it is."""
        return max(0.0, self._due - now)

    def took(self, seconds: float, now: float) -> None:
        """It was done, and is over ``now``."""
        self._due = now + max(self._every_s, min(self._times * seconds, self._longest_s))


def of_ticks() -> Throttle:
    """Of ticks: each report of a task asks for one."""
    return Throttle(every_s=0.0, times=4, longest_s=0.5)


def of_notes() -> Throttle:
    """Of notes of the job's state. What happens meanwhile, a restarted master is told by the
    workers."""
    return Throttle(every_s=1.0, times=9, longest_s=10.0)
