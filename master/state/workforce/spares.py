"""Spares: processes that have imported all that a worker needs, and wait for its place. Pure.

A spare is a worker process without a place: it holds no lease, is in no ring, and counts as no
worker. Its number becomes the worker's when it takes a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from master.state.workforce.processes import PENDING, RUNNING, STARTING, Process

# A job that is over within this never pays for the imports of a spare.
_SETTLED_S = 3.0
# A spare asks every two seconds; one that is paused asks no more, and gets no place.
_AWAKE_S = 5.0
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0


class Spares:
    """How many spares there are to be, and which of them takes a place.

    Args:
        wanted: how many to keep.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.given_up = False
        """A spare could not load the model file: no other one is started."""
        self._deaths = 0  # since a spare took a place
        self._start_after = 0.0
        self._settled_at: float | None = None

    def missing(self, spares: int, workers: Sequence[Process], now: float) -> int:
        """How many to start now: none while a worker has not taken its first step, since the
        imports of a spare would slow down that of the worker.

        Args:
            spares: those that there are.
            workers: those that stay.
        """
        if not self.wanted or self.given_up or not workers:
            return 0
        if not all(worker.trained for worker in workers):
            return 0
        if self._settled_at is None:
            self._settled_at = now + _SETTLED_S
        if now < max(self._settled_at, self._start_after):
            return 0
        return max(0, self.wanted - spares)

    def heard(self, process: Process, now: float, *, warm: bool) -> None:
        """A spare lives.

        Args:
            warm: it has imported everything.
        """
        process.heard_at = now
        if warm and process.state in (PENDING, STARTING):
            process.state = RUNNING

    def ready(self, spares: Sequence[Process], now: float) -> Process | None:
        """The spare that can take a place now."""
        for process in spares:
            awake = process.heard_at is not None and now - process.heard_at < _AWAKE_S
            if process.state == RUNNING and process.stop_by is None and awake:
                return process
        return None

    def take(self, spares: Sequence[Process], now: float) -> bool:
        """A worker's place is free; returns whether a spare takes it."""
        process = self.ready(spares, now)
        if process is None:
            return False
        process.spare, process.was_spare = False, True
        process.state, process.started_at = STARTING, now
        self._deaths = 0
        return True

    def died(self, now: float) -> None:
        """A spare ended, or could not be started: the next one follows later each time."""
        self._start_after = now + min(_FIRST_BACKOFF_S * 2**self._deaths, _LONGEST_BACKOFF_S)
        self._deaths = min(self._deaths + 1, 10)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it."""
        return {"given_up": self.given_up, "deaths": self._deaths}

    def from_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`to_state`."""
        self.given_up, self._deaths = state["given_up"], state["deaths"]
