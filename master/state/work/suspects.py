"""Tasks that workers held when they died: the records at which they died, and how often. Pure.

A worker may be killed for many reasons, and usually another worker can train its tasks. A task that
kills every worker is recognized in two steps. First, the tasks that a dead worker may have begun
become suspects. Then, a suspect is leased only to a worker that holds no other task, and this
worker reports the start and the end of each step: the records that it reads, feeds or computes
(``BeginTask``). A later death counts only if it happened within a step. A SIGKILL of unknown cause
counts only if it came soon after the start of the step, since workers are also killed from outside.
Three random kills soon after the start of the same step of the same task are very unlikely, even if
hundreds of workers are killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from master.state.actions import Failure
from master.state.work.leases import Lease
from torch_edl.config import JobConfig
from torch_edl.events import RecordsSkipped
from torch_edl.processes.launcher import ProcessExit
from torch_edl.wire import master_pb2 as pb

# Tasks that a worker may have begun, oldest first: in training, prefetched by the engine, prepared,
# and in preparation.
_BEGUN = 4
# Seconds after the start of a step within which a SIGKILL of unknown cause counts.
AT_ONCE_S = 1.0


@dataclass(frozen=True)
class Step:
    """Records that a worker reads, feeds or computes."""

    first: int
    """Offset of the first record in the task."""
    last: int
    """Offset after the last record."""
    name: str
    """Name of the records, for messages."""


@dataclass
class Suspect:
    """A task that a worker held when it died."""

    deaths: int = 0
    """Consecutive deaths that count."""
    died_at: Step | None = None
    """Step of the newest death that counts; None if it is unknown."""
    step: Step | None = None
    """Step of the worker that holds the task; None between two steps, and after a restart of the
    master."""
    since: float = 0.0
    """Time at which the step began."""


def verdict(
    config: JobConfig, exit: ProcessExit, name: str, *, log: str, skips: bool
) -> RecordsSkipped | Failure:
    """Return the event that follows when some records have caused the maximum number of deaths: the
    records are left out from now on, or the job fails.

    Args:
        exit: the last death.
        name: name of the records.
        log: path of the worker's log.
        skips: True if the job can leave the records out, provided that the user allows it.
    """
    memory = " (SIGKILL: is there enough memory?)" * (exit.was_killed and not exit.is_unknown)
    text = (
        f"{name}: {config.cluster.max_task_failures} workers in a row died while they read or "
        f"computed these records; worker-{exit.id} {exit.how}{memory}; its log is {log}"
    )
    if skips and config.data.skip_damaged:
        return RecordsSkipped(blame=text)
    fix = "; --skip-damaged leaves them out" * (config.kind == "train")
    return Failure(f"{text}; look at the records{fix}")


class Suspects:
    """The suspects among the tasks of a queue, and the records that are left out."""

    def __init__(self) -> None:
        self._of: dict[int, Suspect] = {}
        self._skipped: dict[int, list[tuple[int, int]]] = {}  # task -> offsets

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, task: int) -> bool:
        return task in self._of

    def skipped(self, task: int) -> Sequence[tuple[int, int]]:
        """Return the ranges of a task that are left out, as offsets ``(first, last)``."""
        return self._skipped.get(task, ())

    def leased(self, task: int) -> None:
        """Record that a worker begins a task."""
        if (suspect := self._of.get(task)) is not None:
            suspect.step = None

    def report(self, task: int, step: pb.TaskStep, now: float) -> None:
        """Record the step that a worker begins; an empty range ends the step."""
        if (suspect := self._of.get(task)) is not None:
            known = step.first < step.last
            suspect.step = Step(step.first, step.last, step.name) if known else None
            suspect.since = now

    def died(self, held: Iterable[Lease], now: float, *, by_kill: bool) -> Suspect | None:
        """Record that a worker died. Returns the suspect against which the death counts; None if it
        counts against none.

        Args:
            held: leases of the worker, oldest first.
            by_kill: SIGKILL ended the worker, and its cause is unknown.
        """
        tasks = [lease.task.id for lease in held][:_BEGUN]
        if not tasks:
            return None
        suspect = self._of.get(tasks[0])
        for task in tasks:
            self._of.setdefault(task, Suspect())
        if suspect is None:
            self._of[tasks[0]].deaths = int(not by_kill)
            return None
        step, suspect.step = suspect.step, None
        if step is None or (by_kill and now - suspect.since > AT_ONCE_S):
            return None
        if suspect.died_at not in (None, step):
            suspect.deaths = 0  # the task got past that step
        suspect.deaths, suspect.died_at = suspect.deaths + 1, step
        return suspect

    def skip(self, task: int) -> None:
        """Leave out the records of the newest death in all later attempts on a task."""
        suspect = self._of[task]
        assert suspect.died_at is not None
        self._skipped.setdefault(task, []).append((suspect.died_at.first, suspect.died_at.last))
        suspect.deaths, suspect.died_at = 0, None

    def done(self, task: int) -> None:
        """Forget a task that is done. Its ranges stay: after a rollback, it is trained again."""
        self._of.pop(task, None)

    def to_state(self) -> dict[str, Any]:
        return {
            "tasks": [
                [task, each.deaths, each.died_at and astuple(each.died_at)]
                for task, each in self._of.items()
            ],
            "skipped": [[task, ranges] for task, ranges in self._skipped.items()],
        }

    def from_state(self, state: Mapping[str, Any]) -> None:
        for task, deaths, at in state["tasks"]:
            self._of[task] = Suspect(deaths, None if at is None else Step(*at))
        for task, ranges in state["skipped"]:
            self._skipped[task] = [(first, last) for first, last in ranges]
