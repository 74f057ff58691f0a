"""Processes that a job has, and those that ended not long ago. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from master.state.workforce.processes import EXITED, Process

T = TypeVar("T")

# Number of ended processes that are still listed. In a day on preemptible machines, a job has a
# hundred times as many processes as run at once.
_REMEMBERED = 1_000
_TIDY_FROM = 1_000


class Roster:
    """Processes by role and id. Queries over running processes do not iterate over ended ones."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], Process] = {}
        self._running: dict[str, dict[int, Process]] = {}
        """Processes by role and id; some may have ended since the last clean-up."""
        self._ended: deque[tuple[str, int]] = deque()
        self._tidy_at = _TIDY_FROM
        self._alive: dict[str | None, OfAll[list[Process]]] = {}
        self.changes = 0
        """Number of changes of processes, apart from the times of their heartbeats."""

    def _changed(self) -> None:
        self.changes += 1

    def __iter__(self) -> Iterator[Process]:
        return iter(self._all.values())

    def __getitem__(self, key: tuple[str, int]) -> Process:
        return self._all[key]

    def get(self, role: str, id: int) -> Process | None:
        """Return a process; None if it is unknown or ended long ago."""
        return self._all.get((role, id))

    def add(self, process: Process) -> None:
        """Add a process."""
        self.put(process)
        if len(self._running[process.role]) >= self._tidy_at:
            self._tidy()

    def put(self, process: Process) -> None:
        """Set the process with this role and number."""
        self._all[process.role, process.id] = process
        self._running.setdefault(process.role, {})[process.id] = process
        process.join(self._changed)
        self._changed()

    def alive(self, kind: str | None = None) -> list[Process]:
        """Return the processes that have not ended: ``worker``, ``spare``, ``ps``, or all."""
        if kind not in self._alive:
            self._alive[kind] = OfAll(self, lambda: self._find(kind))
        return self._alive[kind]()

    def _find(self, kind: str | None) -> list[Process]:
        if kind is None:
            return [p for of in self._running.values() for p in of.values() if p.state != EXITED]
        of = self._running.get("worker" if kind == "spare" else kind, {})
        return [p for p in of.values() if p.kind == kind and p.state != EXITED]

    def _tidy(self) -> None:
        for role, running in self._running.items():
            for id in [id for id, process in running.items() if process.state == EXITED]:
                del running[id]
                self._ended.append((role, id))
        while len(self._ended) > _REMEMBERED:
            del self._all[self._ended.popleft()]
        most = max(map(len, self._running.values()))
        self._tidy_at = max(_TIDY_FROM, 2 * most)


class OfAll(Generic[T]):
    """A cached query over a roster, recomputed after a process changed."""

    def __init__(self, roster: Roster, find: Callable[[], T]) -> None:
        self._roster = roster
        self._find = find
        self._found: tuple[int, T] | None = None

    def __call__(self) -> T:
        if self._found is None or self._found[0] != self._roster.changes:
            self._found = self._roster.changes, self._find()
        return self._found[1]
