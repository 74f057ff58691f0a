"""How far a replica is in the data of its job: part of what members of a ring share. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_edl.data.identity import difference
from torch_edl.errors import UsageError


@dataclass
class Position:
    """How far the replica is; part of what members share."""

    step: int = 0
    """Updates that the model has had (or passed over: a gradient that was not finite)."""
    pass_index: int = 0
    """Which pass over data: the loaders and evaluations of a script, in the order of its code."""
    records: int = 0
    """Records of that pass that are in the model."""
    results: dict[str, Any] = field(default_factory=dict)
    """What earlier passes gave that a later joiner must know: evaluations by pass."""
    data: dict[str, Any] = field(default_factory=dict)
    """What fixes the meaning of ``records``: the data of the newest pass and their order."""
    epochs: int = 0
    """Of the newest pass over data."""
    ended: list[int] = field(default_factory=lambda: [-1, 0])
    """The newest pass that came to its end, and its records."""
    left_out: int = 0
    """Records of all passes that gave no gradient: no member called backward for them."""

    def go_through(self, data: dict[str, Any], epochs: int) -> None:
        """A pass over these data begins, or goes on.

        Raises:
            UsageError: it goes on from a checkpoint, over other data.
        """
        differs = difference(self.data, data) if self.records else None
        if differs is not None:
            then, now = differs
            raise UsageError(
                f"the checkpoint is {self.records:,} records into a pass with {then}; now it is "
                f"{now}: use the same data and options, or another checkpoint_dir to begin afresh"
            )
        self.data, self.epochs = data, epochs

    def end(self) -> None:
        """The pass is over."""
        self.ended = [self.pass_index, self.records]
        self.pass_index, self.records = self.pass_index + 1, 0

    def extend(self, number: int, epochs: int) -> None:
        """Goes back into the newest pass, if it is that one, and has more epochs now.

        What was evaluated after it is evaluated again.
        """
        ended, records = self.ended
        if ended == number < self.pass_index and epochs > self.epochs:
            self.pass_index, self.records = number, records
            self.results = {n: value for n, value in self.results.items() if int(n) < number}

    @property
    def progress(self) -> int:
        """Grows by one with all that members do together: updates, and what they evaluate. One
        may be ahead of the others by one."""
        return self.step + len(self.results)
