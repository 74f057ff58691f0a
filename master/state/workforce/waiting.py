"""Messages to the user about pending processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from master.state.actions import Note
from master.state.workforce.processes import PENDING, RUNNING, STARTING, Process

# Seconds that a process must be pending before it is reported.
_FIRST_WORD_S = 2.0
# Seconds before the same kind of process is reported again.
_AGAIN_S = 30.0
# Seconds below the minimum of workers before this is reported.
_FEW_S = 10.0


@dataclass
class _Told:
    cause: str
    """First part of the reported reason; the rest has counts that change often."""
    at: float
    over: bool = False


@dataclass(frozen=True)
class Census:
    """Counts of the processes that have not ended."""

    waiting: Mapping[str, list[Process]]
    """Pending processes with a known reason, by kind."""
    staying: frozenset[str]
    """Kinds of which at least one process is starting or running."""
    workers: int
    pending: int
    """Number of workers that are pending."""

    @classmethod
    def of(cls, processes: Sequence[Process]) -> Census:
        waiting: dict[str, list[Process]] = {}
        for process in processes:
            if process.state == PENDING and process.waits:
                waiting.setdefault(process.kind, []).append(process)
        staying = frozenset(p.kind for p in processes if p.state in (STARTING, RUNNING))
        workers = [p.state for p in processes if p.kind == "worker"]
        return cls(waiting, staying, len(workers), workers.count(PENDING))


class Waiting:
    """Reports why processes are pending, once and after each change of the reason, and when fewer
    workers than the minimum run."""

    def __init__(self, *, min_workers: int) -> None:
        self._min_workers = min_workers
        self._told: dict[str, _Told] = {}  # by kind of process
        self._few_since: float | None = None
        self._few_told = False

    def tick(self, census: Census, now: float) -> list[Note]:
        """Return the messages that are due."""
        notes: list[Note] = []
        for kind in sorted({*census.waiting, *self._told}):
            waiting = census.waiting.get(kind, [])
            notes += self._of_kind(kind, waiting, now, others=kind in census.staying)
        return [*notes, *self._few(census, now)]

    def _of_kind(
        self, kind: str, waiting: list[Process], now: float, *, others: bool
    ) -> list[Note]:
        told = self._told.get(kind)
        if not waiting:
            if told is None or told.over or not others:
                return []
            told.over = True
            return [Note("info", f"no {_PLURAL[kind]} are waiting now")]
        # The process that has waited longest represents the others, which have the same needs.
        process = min(waiting, key=lambda each: each.waits_at or 0.0)
        cause = process.waits.partition(":")[0]
        if now - (process.waits_at or 0.0) < _FIRST_WORD_S:
            return []
        if told is not None:
            if told.cause == cause and not told.over:
                return []
            if now - told.at < _AGAIN_S:
                return []
        self._told[kind] = _Told(cause, now)
        count = len(waiting)
        who = f"{process.name} waits" if count == 1 else f"{count} {_PLURAL[kind]} wait"
        fix = f"; {process.fix}" if process.fix else ""
        return [Note("warning", f"{who}: {process.waits}{fix}")]

    def _few(self, census: Census, now: float) -> list[Note]:
        pending, run = census.pending, census.workers - census.pending
        if run >= self._min_workers or not pending:
            told, self._few_since, self._few_told = self._few_told, None, False
            if told and run >= self._min_workers:
                return [Note("info", f"workers that run: {run}, minimum: {self._min_workers}")]
            return []
        if self._few_since is None:
            self._few_since = now
        if self._few_told or now - self._few_since < _FEW_S:
            return []
        self._few_told = True
        text = f"workers that run: {run}, minimum: {self._min_workers}; {pending} wait for a place"
        return [Note("warning", text)]


_PLURAL = {
    "worker": "workers",
    "spare": "spares",
    "ps": "parameter servers",
    "agent": "agents",
}
