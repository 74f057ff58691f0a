"""How long a job that is to stop may go on, to keep what it has trained. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# A worker that did not come to the end of its step by then is ended, and a last checkpoint that is
# not written by then is given up: nobody waits for ever for a job to stop.
LEAVE_WITHIN_S = 20.0
STOP_WITHIN_S = 80.0


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Somebody stops the job: all workers leave, and a last checkpoint is written."""

    reason: str
    began: float

    @property
    def leave_by(self) -> float:
        """When workers are to be gone."""
        return self.began + LEAVE_WITHIN_S

    def problem(self, now: float, *, workers: int, awaits_model: bool) -> str:
        """Why there will be no last checkpoint; empty: there may be one.

        Args:
            workers: those that have not left.
            awaits_model: one of them is to write the model that only workers have, and none does.
        """
        if awaits_model and not workers:
            return "no worker is left that has the model"
        if awaits_model and now >= self.leave_by:
            return f"no worker came to the end of its step within {LEAVE_WITHIN_S:g} s"
        if now - self.began >= STOP_WITHIN_S:
            return f"it was not written within {STOP_WITHIN_S:g} s"
        return ""
