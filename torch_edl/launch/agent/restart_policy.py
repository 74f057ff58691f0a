"""Decides what to do about ended workers. The decision is pure, based on counters."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from torch_edl.processes.launcher import ended_by, was_preempted

# Number of workers killed by SIGKILL soon after their start, before the first step of the job, that
# shows that workers do not fit into memory.
MAX_KILLED = 30
_SOON_S = 60.0
# This number of consecutive lost workers is replaced at once; further ones after a pause.
_AT_ONCE = 3
_PAUSE_S = 1.0
# The agent learns the steps of the job with a delay of a few seconds.
_SAME_MOMENT_S = 10.0


class RestartDecision(enum.Enum):
    """Action for an ended worker."""

    DONE = "the script of the worker is over"
    STOPPED = "the agent has stopped the worker"
    REPLACE = "another worker takes its place"
    FAIL = "the job cannot continue"


@dataclass(kw_only=True)
class RestartPolicy:
    """Decides about the workers of one agent and counts their ends."""

    max_restarts: int
    """Rounds of failures after which workers are replaced; ``--max-restarts`` of torchrun."""
    restarts: int = 0
    """Rounds of failures so far."""
    lost_in_a_row: int = 0
    """Preempted workers since the last step of the job."""
    killed: int = 0
    """Workers killed soon after their start, before the first step of the job."""
    _steps: int = 0
    _counted_at: float = float("-inf")
    _counted_steps: int = 0

    def decide(
        self, code: int, *, stopping: bool, steps: int, started_at: float, now: float
    ) -> RestartDecision:
        """Decide about an ended worker.

        One error often ends several workers. Their failures count as one round: those of workers
        that were already running at the last counted failure, if no step was made since.

        Args:
            code: exit code of the worker; -N if signal N ended it.
            stopping: True if this agent stopped the worker.
            steps: steps of the job so far, as known to the agent.
            started_at: start time of the worker, by the clock of ``now``.
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
        """Seconds to wait before the next lost worker is replaced."""
        return _PAUSE_S if self.lost_in_a_row > _AT_ONCE else 0.0
