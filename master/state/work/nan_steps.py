"""Minibatches that ``--on-nan skip`` left out: how many, and what that says of a job. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torch_edl.wire import master_pb2 as pb

# A larger share of minibatches without a finite loss is worth a word at the end.
_MUCH = 0.1


class NanSteps:
    """Counts what workers tell since the model began, or was restored."""

    def __init__(self) -> None:
        self.nan_steps = 0
        """Minibatches whose loss was not finite."""
        self._steps = 0
        self._records = 0
        self._wanted = 0

    def begin(self, records: int) -> None:
        """An incarnation of the model begins, with so many records to go through."""
        self.nan_steps = self._steps = self._records = 0
        self._wanted = records

    def reported(self, counts: pb.TaskCounts) -> None:
        """A worker reported a task, or a part of it."""
        self._records += counts.records
        self._steps += counts.steps
        self.nan_steps += counts.nan_steps

    def reached(self, left_out: int, position: int, batch_size: int) -> None:
        """A member of a ring reported how many records up to its position gave no gradient."""
        if position < self._records:
            return  # another member has reported more
        self._records, self._steps = position, -(-position // batch_size)
        self.nan_steps = self._steps if left_out >= position else left_out // batch_size

    def to_state(self) -> list[int]:
        """What a restarted master needs, as JSON can say it."""
        return [self.nan_steps, self._steps, self._records, self._wanted]

    def from_state(self, state: Sequence[int]) -> None:
        """The inverse of :meth:`to_state`."""
        self.nan_steps, self._steps, self._records, self._wanted = state

    @property
    def is_all(self) -> bool:
        """Nothing was trained, as far as every record is accounted for.

        What a worker did and could not report before it was lost may have been trained.
        """
        return 0 < self._steps <= self.nan_steps and self._records >= self._wanted

    @property
    def text(self) -> str:
        """What to say of it at the end; empty: nothing."""
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
