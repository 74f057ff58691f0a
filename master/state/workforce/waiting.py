"""What processes wait for that were asked for and do not run yet, and what the user hears of it.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from master.state.actions import Note
from master.state.workforce.processes import PENDING, RUNNING, STARTING, Process

# A pod that the scheduler places within this was not worth a word.
_FIRST_WORD_S = 2.0
# How soon the user hears of the same kind of process again.
_AGAIN_S = 30.0
# From when on a job with fewer workers than its minimum says so.
_FEW_S = 10.0


@dataclass
class _Told:
    cause: str
    """What the text begins with: the rest counts machines, and changes with each of them."""
    at: float
    over: bool = False


@dataclass(frozen=True)
class Census:
    """What counts of the processes that have not ended."""

    waiting: Mapping[str, list[Process]]
    """Those that are pending and say why, by kind."""
    staying: frozenset[str]
    """Kinds of which there are processes that do not wait, and are to stay."""
    workers: int
    pending: int
    """Workers that do not run yet."""

    @classmethod
    def of(cls, processes: Iterable[Process]) -> Census:
        """Counts them."""
        waiting: dict[str, list[Process]] = {}
        staying: set[str] = set()
        workers = pending = 0
        for process in processes:
            kind, state = process.kind, process.state
            if kind == "worker":
                workers += 1
                pending += state == PENDING
            if state in (STARTING, RUNNING):
                staying.add(kind)
            elif state == PENDING and process.waits:
                waiting.setdefault(kind, []).append(process)
        return cls(waiting, frozenset(staying), workers, pending)


class Waiting:
    """Says once, and again when it changes, why processes wait; and when fewer workers run than
    the minimum.

    Args:
        min_workers: the minimum.
    """

    def __init__(self, *, min_workers: int) -> None:
        self._min_workers = min_workers
        self._told: dict[str, _Told] = {}  # by kind of process
        self._few_since: float | None = None
        self._few_told = False

    def tick(self, census: Census, now: float) -> list[Note]:
        """Time passes."""
        notes: list[Note] = []
        for kind in sorted({*census.waiting, *self._told}):
            waiting = census.waiting.get(kind, [])
            notes += self._of_kind(kind, waiting, now, others=kind in census.staying)
        return [*notes, *self._few(census, now)]

    def _of_kind(
        self, kind: str, waiting: list[Process], now: float, *, others: bool
    ) -> list[Note]:
        """
        Args:
            others: there are processes of that kind that do not wait, and are to stay.
        """
        told = self._told.get(kind)
        if not waiting:
            if told is None or told.over or not others:
                return []
            told.over = True
            return [Note("info", f"no {_PLURAL[kind]} wait any more")]
        # The one that waits longest stands for the others: they have the same needs.
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
