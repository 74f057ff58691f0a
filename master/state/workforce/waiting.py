"""Messages to the user about pending processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from master.state.workforce.processes import PENDING, RUNNING, STARTING, Process
from torch_edl.events import Event, NonePending, ProcessesPending, WorkersEnough, WorkersPending

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

    def tick(self, census: Census, now: float) -> list[Event]:
        """Return the messages that are due."""
        due: list[Event] = []
        for kind in sorted({*census.waiting, *self._told}):
            waiting = census.waiting.get(kind, [])
            due += self._of_kind(kind, waiting, now, others=kind in census.staying)
        return [*due, *self._few(census, now)]

    def _of_kind(
        self, kind: str, waiting: list[Process], now: float, *, others: bool
    ) -> list[Event]:
        told = self._told.get(kind)
        if not waiting:
            if told is None or told.over or not others:
                return []
            told.over = True
            return [NonePending(role=kind)]
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
        pending = ProcessesPending(
            role=kind,
            count=len(waiting),
            process=process.name,
            why=process.waits,
            fix=process.fix,
        )
        return [pending]

    def _few(self, census: Census, now: float) -> list[Event]:
        pending, run = census.pending, census.workers - census.pending
        if run >= self._min_workers or not pending:
            told, self._few_since, self._few_told = self._few_told, None, False
            if told and run >= self._min_workers:
                return [WorkersEnough(running=run, minimum=self._min_workers)]
            return []
        if self._few_since is None:
            self._few_since = now
        if self._few_told or now - self._few_since < _FEW_S:
            return []
        self._few_told = True
        return [WorkersPending(running=run, minimum=self._min_workers, pending=pending)]
