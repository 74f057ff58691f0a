"""The trainings of a script, one after the other: each has its own model, data and rings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Trainings:
    """The number of the current training, and the newest checkpoint of each one.

    Every process counts its calls of ``torch_edl.init()`` and registers with the number. A process
    that replaces a lost one runs the script from the top, so it registers for training 1 again.
    """

    def __init__(self) -> None:
        self.number = 1
        """Number of the current training; the first one of a script has number 1."""
        self._checkpoints: dict[int, str] = {}

    def begin(self, number: int, newest: str) -> str:
        """Begin a training: the next one, or an earlier one again.

        Args:
            newest: newest checkpoint of the training before; empty if there is none.

        Returns:
            The newest checkpoint of the training that begins; empty if there is none.
        """
        self._checkpoints[self.number] = newest
        self.number = number
        return self._checkpoints.get(number, "")

    def checkpoint_of(self, number: int) -> str:
        """Return the last checkpoint of an earlier training; empty if there is none."""
        return self._checkpoints.get(number, "")

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {"number": self.number, "checkpoints": list(self._checkpoints.items())}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.number = state["number"]
        self._checkpoints = dict(map(tuple, state["checkpoints"]))
