"""Replays a ledger: which tasks are done, who did each part, and if one counted twice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Problems that are listed; further ones are counted.
_LISTED = 20


@dataclass
class Replay:
    """The job after all entries."""

    begun: dict[str, Any] = field(default_factory=dict)
    """What the ids of tasks mean; empty before the data was known."""
    done: dict[int, int] = field(default_factory=dict)
    """Worker of each task that is done; -1: done before this run, in a checkpoint."""
    retired: int = 0
    """Tasks below are done in the checkpoint that the job restored last."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Committed records of tasks that are not done."""
    parts: dict[int, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    """Leases of a task that ended early: (worker, first record, committed records, reason)."""
    position: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Position of a ring and number of all records, by pass."""
    returned: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of returned leases by (task, reason)."""
    restores: int = 0
    end: tuple[str, int] | None = None
    """State of the ended job, and its number of tasks."""
    problems: list[str] = field(default_factory=list)

    def is_done(self, task: int) -> bool:
        """Return whether the task is done."""
        return task < self.retired or task in self.done


def replay(entries: Iterable[tuple[int, float, list[Any]]], place: str) -> Replay:
    """Return the job after the entries; ``place`` is the file, for problems."""
    job = Replay()
    for number, _, entry in entries:
        try:
            problem = _apply(job, entry)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError):
            problem = f"{str(entry)[:80]}: not an entry of the ledger"
        if problem and len(job.problems) < _LISTED:
            job.problems.append(f"{place}, line {number}: {problem}")
    return job


def _apply(job: Replay, entry: list[Any]) -> str:
    match entry:
        case ["begin", dict(begun)]:
            job.begun, job.end = begun, None
        case ["done", worker, offset, str(runs)]:
            job.end = None
            for task in ids(runs):
                if job.is_done(task):
                    return f"task {task} is done twice, now by worker-{worker}"
                # A lease that had expired: the task was returned last by this worker.
                late = worker == -1 and job.parts.get(task)
                job.done[task] = job.parts[task][-1][0] if late else worker
                if offset > job.offsets.get(task, 0):
                    return f"task {task} went on at record {offset}, and fewer were committed"
                job.offsets.pop(task, None)
        case ["back", worker, task, offset, committed, str(why)]:
            job.end = None
            if job.is_done(task):
                return f"task {task} is returned by worker-{worker} after it was done"
            job.offsets[task] = max(committed, job.offsets.get(task, 0))
            job.parts.setdefault(task, []).append((worker, offset, committed, why))
            job.returned[task, why] += 1
        case ["restored", int(retired), list(offsets)]:
            job.retired, job.offsets = retired, dict(offsets)
            job.done, job.parts, job.position = {}, {}, {}
            job.restores += 1
        case ["position", number, at, of]:
            job.end = None
            if at < job.position.get(number, (0, 0))[0]:
                return f"the ring went back to record {at} of pass {number}, and restored nothing"
            job.position[number] = (at, of)
        case ["end", str(state), int(total)]:
            job.end = (state, total)
        case _:
            return f"{str(entry)[:80]}: not an entry of the ledger"
    return ""


def ids(runs: str) -> Iterator[int]:
    """Yield the ids of ``3-7,9``."""
    for run in filter(None, runs.split(",")):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
