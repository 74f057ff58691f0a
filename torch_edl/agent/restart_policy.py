"""What follows from the end of a worker: a pure decision, with the counts that it needs."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from torch_edl.processes.spec import ended_by, was_preempted

# Workers that get SIGKILL as often, one soon after its start, before the job ever makes a step, do
# not fit in memory.
MAX_KILLED = 30
_SOON_S = 60.0
# The first lost workers in a row are replaced at once, further ones after a pause.
_AT_ONCE = 3
_PAUSE_S = 1.0
# The agent knows the steps of the job with a delay of a few seconds.
_SAME_MOMENT_S = 10.0


class RestartDecision(enum.Enum):
    """What to do about a worker that ended."""

    DONE = "the script of the worker is over"
    STOPPED = "the agent has stopped the worker"
    REPLACE = "another worker takes its place"
    FAIL = "the job cannot continue"


@dataclass(kw_only=True)
class RestartPolicy:
    """Decides about the workers of one agent, and counts their ends."""

    max_restarts: int
    """Rounds of failures after which workers are replaced, torchrun's ``--max-restarts``."""
    restarts: int = 0
    """Rounds of failures so far."""
    lost_in_a_row: int = 0
    """Workers that were preempted since the job last made a step."""
    killed: int = 0
    """Workers that were killed soon after their start, before the job ever made a step."""
    _steps: int = 0
    _counted_at: float = float("-inf")
    _counted_steps: int = 0

    def decide(
        self, code: int, *, stopping: bool, steps: int, started_at: float, now: float
    ) -> RestartDecision:
        """Decides about a worker that ended.

        The same error often ends several workers. Failures are one round until the job has gone
        on: those of workers that ran when the last one was counted, before a step was made.

        Args:
            code: exit code of the worker; -N: signal N ended it.
            stopping: this agent has stopped the worker.
            steps: that the job has made so far, as far as the agent knows.
            started_at: when the worker was started, by the clock of ``now``.
        """
        if code == 0:
            return RestartDecision.DONE
        if stopping:
            return RestartDecision.STOPPED
        if was_preempted(code):
            self.lost_in_a_row = 1 if steps > self._steps else self.lost_in_a_row + 1
            self._steps = max(steps, self._steps)
            # A script that does not use torch_edl reports no steps.
            fits = self._steps > 0 or now - started_at >= _SOON_S
            if fits or not ended_by(code, signal.SIGKILL):
                self.killed = 0 if fits else self.killed
                return RestartDecision.REPLACE
            self.killed += 1
            return RestartDecision.REPLACE if self.killed <= MAX_KILLED else RestartDecision.FAIL
        went_on = steps > self._counted_steps and now - self._counted_at > _SAME_MOMENT_S
        if started_at <= self._counted_at and not went_on:
            return RestartDecision.REPLACE
        if self.restarts < self.max_restarts:
            self.restarts += 1
            self._counted_at, self._counted_steps = now, steps
            return RestartDecision.REPLACE
        return RestartDecision.FAIL

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next worker is replaced."""
        return _PAUSE_S if self.lost_in_a_row > _AT_ONCE else 0.0
