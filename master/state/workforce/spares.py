"""Spares: idle pods, each of which can take the process of a lost pod at once. Pure.

A spare is no worker. The worker that starts in its pod has the number of the spare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from master.state.workforce.processes import RUNNING, Process, Spare, WorkerProcess

# Seconds of training before spares start, so that a short job does not pay for their imports.
_SETTLED_S = 3.0
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0


class Spares:
    """The number of spares to keep, and the choice of the one in which a process starts."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._deaths = 0  # since a process last started in a spare
        self._start_after = 0.0
        self._settled_at: float | None = None

    def missing(self, spares: int, workers: Sequence[WorkerProcess], now: float) -> int:
        """Return the number of spares to start now. None start before each worker that stays has
        taken a step, since the imports would slow it down."""
        if not self.wanted or not workers or not all(worker.trained for worker in workers):
            return 0
        if self._settled_at is None:
            self._settled_at = now + _SETTLED_S
        if now < max(self._settled_at, self._start_after):
            return 0
        return max(0, self.wanted - spares)

    def ready(self, spares: Sequence[Process]) -> Spare | None:
        """Return a spare in which a process can start now; None if there is none."""
        for process in spares:
            if isinstance(process, Spare) and process.state == RUNNING and process.stop_by is None:
                return process
        return None

    def used(self) -> None:
        """Record that a process starts in a spare."""
        self._deaths = 0

    def died(self, now: float) -> None:
        """Delay the next spare: one was lost, or could not be started."""
        self._start_after = now + min(_FIRST_BACKOFF_S * 2**self._deaths, _LONGEST_BACKOFF_S)
        self._deaths = min(self._deaths + 1, 10)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {"deaths": self._deaths}

    def from_state(self, state: Mapping[str, Any]) -> None:
        self._deaths = state["deaths"]
