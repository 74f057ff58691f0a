"""How far a model is in its data, which is part of what the members of a ring share."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from torch_edl.data.task_space import difference
from torch_edl.errors import UsageError

log = logging.getLogger(__name__)


@dataclass
class Position:
    """The updates and records that the model of a replica has."""

    step: int = 0
    """Updates of the model, those included that were skipped for a gradient that was not finite."""
    pass_index: int = 0
    """The current pass over data: loaders and evaluations of a script count in the order of its
    code."""
    records: int = 0
    """Records of the current pass that are in the model."""
    results: dict[str, Any] = field(default_factory=dict)
    """The results of evaluations by their pass, for members that join later."""
    data: dict[str, Any] = field(default_factory=dict)
    """What fixes the meaning of ``records``: the data of the newest pass and their order."""
    epochs: int = 0
    """Epochs of the newest pass."""
    ended: list[int] = field(default_factory=lambda: [-1, 0])
    """The newest pass that has ended, and its records."""
    left_out: int = 0
    """Records of all passes without a gradient: no member called backward for them."""

    def go_through(self, data: dict[str, Any], epochs: int) -> None:
        """Begins a pass over these data, or continues it.

        Raises:
            UsageError: the checkpoint that is resumed is in the middle of a pass over other data.
        """
        differs = difference(self.data, data) if self.records else None
        if differs is not None:
            then, now = differs
            raise UsageError(
                f"the checkpoint is {self.records:,} records into a pass with {then}; now it is "
                f"{now}: use the same data and options, or another checkpoint_dir to start over"
            )
        if self.records and self.data.get("samples") not in (None, data.get("samples")):
            # An error would keep a script from resuming whose dataset was edited.
            log.warning(
                "the dataset stores other samples than when the checkpoint was written, %d "
                "records ago in this pass: some records are trained twice and others never if the "
                "samples are split or shuffled without a seed", self.records,
            )  # fmt: skip
        self.data, self.epochs = data, epochs

    def end(self) -> None:
        """Ends the current pass."""
        self.ended = [self.pass_index, self.records]
        self.pass_index, self.records = self.pass_index + 1, 0

    def extend(self, number: int, epochs: int) -> None:
        """Continues pass ``number`` if it is the newest that has ended, and has more epochs now.

        Evaluations after that pass are repeated.
        """
        ended, records = self.ended
        if ended == number < self.pass_index and epochs > self.epochs:
            self.pass_index, self.records = number, records
            self.results = {n: value for n, value in self.results.items() if int(n) < number}

    @property
    def progress(self) -> int:
        """The number of updates and evaluations so far. Members of a ring differ by one at most."""
        return self.step + len(self.results)
