"""A job from its start to its end, and what the user hears of it. Pure.

What there is to do, and who does it, is nothing of its business: see :mod:`master.state.job`.
"""

from __future__ import annotations

from master.state.events import Course, Events, Rates
from master.state.fleet import Fleet
from master.state.outcome import Outcome
from master.state.stopping import Stopping


class Lifecycle:
    """Goes from starting over running, stopping and finishing to finished, failed or stopped, and
    never back.

    Args:
        fleet: ends with the job.
        wall_offset_s: Unix time minus the clock of the events.
    """

    def __init__(self, fleet: Fleet, *, wall_offset_s: float) -> None:
        self.fleet = fleet
        self.events = Events()
        self.rates = Rates()
        self.outcome: Outcome | None = None
        self.ended_at = 0.0
        """When the outcome was known."""
        self.stopping: Stopping | None = None
        self.over = False
        """Every process has ended too."""
        self._course = Course()
        self._wall_offset_s = wall_offset_s

    @property
    def state(self) -> str:
        """starting, running, stopping, finishing, finished, failed or stopped."""
        if self.outcome is not None:
            return self.outcome.state if self.over else "finishing"
        if self.stopping is not None:
            return "stopping"
        return self._course.state

    @property
    def end_is_awaited(self) -> bool:
        """Whoever started the master asks it how the job ended."""
        return True

    def wall_s(self, now: float) -> float:
        """Seconds since somebody had something to do, until the work was done."""
        return self._course.wall_s(now)

    def leased(self, now: float) -> None:
        """Somebody has something to do: the job runs."""
        self._course.began(now)

    def stop(self, reason: str, now: float, *, at_once: bool = False) -> None:
        """Somebody wants it to end; may be repeated.

        Args:
            at_once: without a last checkpoint, and no process is waited for.
        """
        if at_once:
            self.fleet.hurry()
        if self.outcome is not None:
            return
        first = self.stopping is None
        if first:
            self.tell("warning", f"stopping: {reason}", now)
            self.stopping = Stopping(reason=reason, began=now)
        if at_once or (first and not self._begin_to_stop(now)):
            self._stopped(now)

    def _begin_to_stop(self, now: float) -> bool:
        """Has workers leave, if there is something to be kept; False: the job may end at once."""
        return False

    def _stopped(self, now: float, problem: str = "") -> None:
        """The job that was to stop ends.

        Args:
            problem: why what it has trained could not be kept.
        """
        assert self.stopping is not None
        if problem:
            self.tell("warning", f"no last checkpoint: {problem}", now)
        self._end(Outcome("stopped", 143, error=self.stopping.reason), now, leave_s=0.0)

    def fail(self, error: str, now: float, *, traceback: str = "", usage: bool = False) -> None:
        """It cannot go on; the first cause counts."""
        if self.outcome is None and self.stopping is not None:
            self._stopped(now, error)
        elif self.outcome is None:
            self.tell("error", error, now, traceback)
            outcome = Outcome("failed", 2 if usage else 1, error, traceback, usage)
            self._end(outcome, now, leave_s=0.0)

    def tell(self, level: str, text: str, now: float, traceback: str = "") -> None:
        """Notes an event for the user."""
        self.events.add(level, text, now + self._wall_offset_s, traceback)

    def _end(self, outcome: Outcome, now: float, *, leave_s: float) -> None:
        self.outcome, self.ended_at = outcome, now
        self.fleet.end(now, leave_s=leave_s)
