"""When the next checkpoint of a job is due. Pure."""

from __future__ import annotations

from torch_edl.config import JobConfig

_RETRY_S = 5.0
_EARLY_RETRY_S = 0.5
_ATTEMPTS = 3


class CheckpointSchedule:
    """The next periodic checkpoint, and the pause after one that failed."""

    def __init__(self, config: JobConfig) -> None:
        self._every = config.checkpoint.every if config.checkpoint.dir else 0
        self.next = 0
        """Minibatches at which the next periodic checkpoint is due; 0: as soon as possible."""
        self.failures = 0
        """Number of checkpoints in a row that the job needs and that failed."""
        self._not_before = 0.0

    def continue_after(self, steps: int) -> None:
        """Schedule the first multiple of the interval above ``steps``."""
        self.next = (steps // self._every + 1) * self._every if self._every else 0

    def is_due(self, steps: int) -> bool:
        """Return whether a periodic checkpoint is due."""
        return bool(self._every) and steps >= self.next

    def is_paused(self, now: float) -> bool:
        """Return whether the pause after a failure is not over."""
        return now < self._not_before

    def retry(self, now: float, *, early: bool = False) -> None:
        """Begin the pause after a failure; a short one if the servers have no model yet."""
        self._not_before = now + (_EARLY_RETRY_S if early else _RETRY_S)

    def hasten(self) -> None:
        """Take the periodic checkpoint that failed after the pause, not at the next multiple."""
        if self._every:
            self.next = 0

    def count_failure(self) -> bool:
        """Count the failure of a checkpoint that the job needs. Returns whether it was the last
        attempt."""
        self.failures += 1
        return self.failures >= _ATTEMPTS
