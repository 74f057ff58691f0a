"""When the next checkpoint of a job is due, and the one that is being taken. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from master.state.actions import CommitLocal
from torch_edl.config import JobConfig

_RETRY_S = 5.0
_EARLY_RETRY_S = 0.5
_ATTEMPTS = 3
# Upper bound on the moves that one master attempts.
_MOVES_OF_A_MASTER = 1 << 32


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


@dataclass
class CheckpointAttempt:
    """A checkpoint that is being taken."""

    kind: str = ""
    """``periodic``, ``best``, ``final`` or ``cut``."""
    by_worker: bool = False
    """True if a worker writes the checkpoint."""
    servers: tuple[int, ...] = ()
    """Incarnations of the servers that write the checkpoint, in the order of shards."""
    commit: CommitLocal | None = None
    """The commit of what a worker wrote; None before the worker has written."""


class AttemptNumbers:
    """Numbers that no other master of the job uses.

    Args:
        master: number of this master.
    """

    def __init__(self, master: int = 0) -> None:
        self._master = master
        self._snapshots = self._moves = 0

    def next_snapshot(self) -> str:
        """Return the number of the next snapshot, as in its folder."""
        self._snapshots += 1
        return f"{self._master}-{self._snapshots}"

    def next_move(self) -> int:
        """Return the number of the next move. Not a clock: that of an earlier master's machine may
        be ahead."""
        self._moves += 1
        return self._master * _MOVES_OF_A_MASTER + self._moves
