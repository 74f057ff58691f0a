"""The trainings of a script, one after the other: each has its own model, data and rings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from master.state.actions import Saved
from torch_edl.checkpoint.manifest import Manifest


class Counts(NamedTuple):
    """Totals of trainings on servers."""

    records: int = 0
    steps: int = 0
    early: int = 0
    """Number of records that are not trained because the script left its loops early."""
    nan_steps: int = 0
    """Number of minibatches that were left out because their loss was not finite."""


class Trainings:
    """The number of the current training, and the newest checkpoint of each one.

    Every process counts its calls of ``torch_edl.init()`` and registers with the number. A process
    that replaces a lost one runs the script from the top, so it registers for training 1 again.

    Args:
        resumed: checkpoints of later trainings, from which their models on servers are resumed.
    """

    def __init__(self, resumed: Mapping[int, Saved] | None = None) -> None:
        self.number = 1
        """Number of the current training; the first one of a script has number 1."""
        self.awaited = False
        """True if a process waits for the next training, and none is left in the current one."""
        self._checkpoints: dict[int, str] = {}
        self._saved = dict(resumed or {})  # checkpoints of servers
        self._counts: dict[int, Counts] = {}

    def begin(
        self, number: int, newest: str, saved: Saved | None, counts: Counts
    ) -> tuple[str, Saved | None]:
        """Begin a training: the next one, or an earlier one again.

        Args:
            newest: newest checkpoint of the training before; empty if there is none.
            saved: that checkpoint with its manifest, if the model was on servers; else None.
            counts: totals of the training before; zeros if the model was not on servers.

        Returns:
            The newest checkpoint of the training that begins, in the forms of ``newest`` and
            ``saved``.
        """
        self._checkpoints[self.number], self._counts[self.number] = newest, counts
        if saved is not None:
            self._saved[self.number] = saved
        self.number, self.awaited = number, False
        found = self._saved.get(number)
        return self._checkpoints.get(number, "" if found is None else str(found.path)), found

    @property
    def before(self) -> Counts:
        """Totals of the earlier trainings on servers. The members of a ring report their totals."""
        earlier = [each for number, each in self._counts.items() if number < self.number]
        return Counts(*map(sum, zip(*earlier, strict=True))) if earlier else Counts()

    def checkpoint_of(self, number: int) -> str:
        """Return the last checkpoint of an earlier training; empty if there is none."""
        return self._checkpoints.get(number, "")

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "awaited": self.awaited,
            "checkpoints": list(self._checkpoints.items()),
            "saved": [
                [number, str(saved.path), saved.manifest.to_json()]
                for number, saved in self._saved.items()
            ],
            "counts": list(self._counts.items()),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.number, self.awaited = state["number"], state["awaited"]
        self._checkpoints = dict(map(tuple, state["checkpoints"]))
        self._saved = {
            number: Saved(Path(path), Manifest.from_json(manifest))
            for number, path, manifest in state["saved"]
        }
        self._counts = {number: Counts(*counts) for number, counts in state["counts"]}
