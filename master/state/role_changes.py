"""Workers and spares that become servers, since no new process can be had. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class RoleChanges:
    """What worker processes are told to serve."""

    def __init__(self) -> None:
        self.shards: set[int] = set()
        """Those that a worker is to serve, which becomes a server."""
        self._words: dict[int, list[str]] = {}

    def give(self, worker: int, words: Sequence[str]) -> None:
        """A worker is to become a server with these arguments."""
        self._words[worker] = list(words)

    def of(self, worker: int) -> list[str]:
        """The arguments of the server that a worker is to become; empty: the worker stays one."""
        return self._words.get(worker, [])

    def to_state(self) -> Any:
        """What a restarted master needs, as JSON can say it."""
        return sorted(self._words.items())

    def from_state(self, state: Any) -> None:
        """The inverse of :meth:`to_state`."""
        words: Mapping[int, list[str]] = dict(state)
        self._words = dict(words)
