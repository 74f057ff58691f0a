"""Spares: worker processes that have imported everything and wait for a worker slot. Pure.

A spare holds no lease, is in no ring, and does not count as a worker. It keeps its number when it
takes a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from master.state.workforce.processes import (
    PENDING,
    RUNNING,
    STARTING,
    Process,
    SpareProcess,
    WorkerProcess,
)

# Seconds of training before spares start, so that a short job does not pay for their imports.
_SETTLED_S = 3.0
# Seconds without a poll after which a spare gets no slot: it may be paused. Spares poll every two
# seconds.
_AWAKE_S = 5.0
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0


class Spares:
    """The number of spares to keep, and the choice of the one that takes a worker slot."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.given_up = False
        """True if a spare could not load the model file; no further spares are started."""
        self._deaths = 0  # since a spare last took a slot
        self._start_after = 0.0
        self._settled_at: float | None = None

    def missing(self, spares: int, workers: Sequence[WorkerProcess], now: float) -> int:
        """Return the number of spares to start now. None start before each worker that stays has
        taken a step, since the imports would slow it down."""
        if not self.wanted or self.given_up or not workers:
            return 0
        if not all(worker.trained for worker in workers):
            return 0
        if self._settled_at is None:
            self._settled_at = now + _SETTLED_S
        if now < max(self._settled_at, self._start_after):
            return 0
        return max(0, self.wanted - spares)

    def heard(self, process: SpareProcess, now: float, *, warm: bool) -> None:
        """Record a poll of a spare, which is ``warm`` once it has imported everything."""
        process.heard_at = now
        if warm and process.state in (PENDING, STARTING):
            process.enter(RUNNING)

    def ready(self, spares: Sequence[Process], now: float) -> SpareProcess | None:
        """Return a spare that can take a slot now; None if there is none."""
        for process in spares:
            if isinstance(process, SpareProcess) and process.heard_at is not None:
                awake = now - process.heard_at < _AWAKE_S
                if awake and process.state == RUNNING and process.stop_by is None:
                    return process
        return None

    def take(self, spares: Sequence[Process], now: float) -> WorkerProcess | None:
        """Let a spare take a worker slot. Returns the worker that the process is from now on, if
        one is ready."""
        process = self.ready(spares, now)
        if process is None:
            return None
        self._deaths = 0
        return process.take_slot(now)

    def died(self, now: float) -> None:
        """Delay the next spare: one ended, or could not be started."""
        self._start_after = now + min(_FIRST_BACKOFF_S * 2**self._deaths, _LONGEST_BACKOFF_S)
        self._deaths = min(self._deaths + 1, 10)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {"given_up": self.given_up, "deaths": self._deaths}

    def from_state(self, state: Mapping[str, Any]) -> None:
        self.given_up, self._deaths = state["given_up"], state["deaths"]
