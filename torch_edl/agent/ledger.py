"""What follows from the end of a worker: a pure decision, with the counts that it needs."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

_PREEMPTED = (-signal.SIGKILL, -signal.SIGTERM)
# Who is killed as often before the job makes a step is not unlucky: it does not fit in memory.
MAX_LOST_IN_A_ROW = 30
# The first losses in a row are made good at once, further ones after a pause.
_AT_ONCE = 3
_PAUSE_S = 1.0
# What is known of the job's steps is a few seconds old.
_SAME_MOMENT_S = 10.0


class Verdict(enum.Enum):
    """What to do about a worker that ended."""

    DONE = "its script is over"
    STOPPED = "it was told to end"
    REPLACE = "another one takes its place"
    FAIL = "the job cannot go on"


@dataclass(kw_only=True)
class Ledger:
    """Counts the ends of one agent's workers."""

    max_restarts: int
    """How many rounds of failures are made good, as ``--max-restarts`` of torchrun."""
    restarts: int = 0
    """Failures that counted."""
    lost_in_a_row: int = 0
    """Workers that a signal ended since the job last made a step."""
    _steps: int = 0
    _counted_at: float = float("-inf")
    _counted_steps: int = 0

    def judge(
        self, code: int, *, stopping: bool, steps: int, started_at: float, now: float
    ) -> Verdict:
        """Decides about a worker that ended.

        The same error often ends several workers. Failures count once until the job has gone on:
        those of workers that ran when the last one was counted, before a step was made.

        Args:
            code: its exit code; -N: signal N ended it.
            stopping: this agent told it to end.
            steps: that the job has made so far, as far as is known.
            started_at: when it was started, by the clock of ``now``.
        """
        if code == 0:
            return Verdict.DONE
        if stopping:
            return Verdict.STOPPED
        if code in _PREEMPTED:
            self.lost_in_a_row = 1 if steps > self._steps else self.lost_in_a_row + 1
            self._steps = max(steps, self._steps)
            return Verdict.REPLACE if self.lost_in_a_row <= MAX_LOST_IN_A_ROW else Verdict.FAIL
        went_on = steps > self._counted_steps and now - self._counted_at > _SAME_MOMENT_S
        if started_at <= self._counted_at and not went_on:
            return Verdict.REPLACE
        if self.restarts < self.max_restarts:
            self.restarts += 1
            self._counted_at, self._counted_steps = now, steps
            return Verdict.REPLACE
        return Verdict.FAIL

    @property
    def pause_s(self) -> float:
        """How long to wait before the next replacement is started."""
        return _PAUSE_S if self.lost_in_a_row > _AT_ONCE else 0.0
