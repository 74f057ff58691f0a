"""Workers and spares that become servers, by preference or because no process can be started.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class RoleChanges:
    """The command-line arguments for worker processes that are to become servers."""

    def __init__(self) -> None:
        self.shards: set[int] = set()
        """Shards whose next server is made from a worker or a spare."""
        self._words: dict[int, list[str]] = {}

    def give(self, worker: int, words: Sequence[str]) -> None:
        """Assign a worker the arguments of the server that it is to become."""
        self._words[worker] = list(words)

    def of(self, worker: int) -> list[str]:
        """Return the arguments of the server that a worker is to become; empty if it stays a
        worker."""
        return self._words.get(worker, [])

    def to_state(self) -> Any:
        """Return the state for a restarted master, as JSON values."""
        return sorted(self._words.items())

    def from_state(self, state: Any) -> None:
        """Restore what :meth:`to_state` returned."""
        words: Mapping[int, list[str]] = dict(state)
        self._words = dict(words)
