"""Minibatches that ``--on-nan skip`` left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torch_edl.wire import master_pb2 as pb

# Share of minibatches without a finite loss above which the job ends with a warning.
_MUCH = 0.1


class NanSteps:
    """Counts of what workers reported since the model was created or restored."""

    def __init__(self) -> None:
        self.nan_steps = 0
        """Number of minibatches whose loss was not finite."""
        self._steps = 0
        self._records = 0
        self._wanted = 0

    def begin(self, records: int) -> None:
        """Reset the counts for an incarnation of the model that has ``records`` left to train."""
        self.nan_steps = self._steps = self._records = 0
        self._wanted = records

    def reported(self, counts: pb.TaskCounts) -> None:
        """Add the counts of a task, or of a part of it."""
        self._records += counts.records
        self._steps += counts.steps
        self.nan_steps += counts.nan_steps

    def reached(self, left_out: int, position: int, batch_size: int) -> None:
        """Record how many records up to the position of a ring's member gave no gradient."""
        if position < self._records:
            return  # another member has reported more
        self._records, self._steps = position, -(-position // batch_size)
        self.nan_steps = self._steps if left_out >= position else left_out // batch_size

    def to_state(self) -> list[int]:
        """Return the state for a restarted master, as JSON values."""
        return [self.nan_steps, self._steps, self._records, self._wanted]

    def from_state(self, state: Sequence[int]) -> None:
        """Restore what :meth:`to_state` returned."""
        self.nan_steps, self._steps, self._records, self._wanted = state

    @property
    def is_all(self) -> bool:
        """True if every record is accounted for, and no minibatch had a finite loss.

        Work that a lost worker did not report may have been trained.
        """
        return 0 < self._steps <= self.nan_steps and self._records >= self._wanted

    @property
    def text(self) -> str:
        """Warning or error at the end of the job; empty if there is nothing to report."""
        if self.is_all:
            return (
                f"nothing was trained: none of the {self._steps:,} minibatches had a finite loss, "
                "and --on-nan skip left them out; lower the learning rate, or look at the data"
            )
        if self.nan_steps > _MUCH * self._steps:
            return (
                f"--on-nan skip left {self.nan_steps:,} of {self._steps:,} minibatches out: their "
                "loss was not finite"
            )
        return ""
