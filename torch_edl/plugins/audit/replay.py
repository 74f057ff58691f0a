"""Replays a ledger: which tasks are done, who did each part, and if one counted twice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Problems that are listed; further ones are counted.
_LISTED = 20
RESTORED = -2
"""Worker of a task that a checkpoint, or the servers, had when the job went on from them."""


@dataclass(frozen=True)
class Restore:
    """The job went on from the progress of a checkpoint, of its servers, or from the beginning."""

    line: int
    lost: int
    """Number of tasks that were done before, and were done again."""
    place: tuple[int, int] | None
    """Pass and position of the ring before; None if the job was no ring."""
    resumed: bool
    """True if it is the progress of an earlier job."""
    empty: bool
    """True if nothing was done."""


@dataclass
class PassPosition:
    """The position of a ring in one pass over the data."""

    records: int
    of: int
    """Number of all records of the pass; 0: unknown."""
    before: int
    """Number of records of earlier passes that are in the model."""
    left: int
    """Number of records of earlier passes that the script left out."""


@dataclass
class Replay:
    """The job after all entries."""

    begun: dict[str, Any] = field(default_factory=dict)
    """What the ids of tasks mean; empty before the data was known."""
    done: dict[int, int] = field(default_factory=dict)
    """Worker of each task that is done; -1: unknown, since the lease had expired."""
    retired: int = 0
    """Tasks below are done in what the job restored last."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Committed records of tasks that are not done."""
    parts: dict[int, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    """Leases of a task that ended early: (worker, first record, committed records, reason)."""
    ranges: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """Partition, first record and end of each task of a stream."""
    passes: dict[int, PassPosition] = field(default_factory=dict)
    """Position of a ring in each pass."""
    rings: list[tuple[int, list[int], tuple[int, int] | None]] = field(default_factory=list)
    """Number, members, and last known (pass, position) of each ring when it was formed; None if it
    went on from a checkpoint or from the beginning."""
    returned: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of returned leases by (task, reason)."""
    restores: list[Restore] = field(default_factory=list)
    end: tuple[str, int] | None = None
    """State of the ended job, and its number of tasks."""
    ends_restored: bool = False
    """True if nothing happened between the last restore and the end."""
    problems: list[str] = field(default_factory=list)

    def is_done(self, task: int) -> bool:
        """Return whether the task is done."""
        return task < self.retired or task in self.done

    @property
    def place(self) -> tuple[int, int]:
        """Last known pass and position of a ring."""
        last = max(self.passes, default=0)
        return last, self.passes[last].records if self.passes else 0


def replay(entries: Iterable[tuple[int, float, list[Any]]], file: str) -> Replay:
    """Return the job after the entries; ``file`` is named by the problems."""
    job, rewound = Replay(), False
    for number, _, entry in entries:
        try:
            problem = _apply(job, entry, number, rewound)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError):
            problem = f"{str(entry)[:80]}: not an entry of the ledger"
        rewound = entry[:1] == ["restored"] or (rewound and entry[:1] != ["position"])
        if problem and len(job.problems) < _LISTED:
            job.problems.append(f"{file}, line {number}: {problem}")
    return job


def _apply(job: Replay, entry: list[Any], line: int, rewound: bool) -> str:
    kind = entry[0]
    if kind != "end":
        job.end, job.ends_restored = None, kind == "restored"
    match entry:
        case ["begin", dict(begun)]:
            job.begun = begun
        case ["cut", str(shard), list(ranges)]:
            for task, start, end in ranges:
                job.ranges[int(task)] = (shard, int(start), int(end))
        case ["done", int(worker), int(offset), str(runs)]:
            for task in ids(runs):
                if problem := _done(job, task, worker, offset):
                    return problem
        case ["back", int(worker), int(task), int(offset), int(committed), str(why)]:
            if job.is_done(task):
                return f"task {task} is returned by worker-{worker} after it was done"
            job.offsets[task] = max(committed, job.offsets.get(task, 0))
            job.parts.setdefault(task, []).append((worker, offset, committed, why))
            job.returned[task, why] += 1
        case ["restored", int(retired), list(offsets), str(whole)]:
            _restore(job, retired, {int(task): int(at) for task, at in offsets}, whole, line)
        case ["position", int(number), int(at), int(of), int(before), int(left)]:
            return _move(job, number, PassPosition(at, of, before, left), rewound)
        case ["ring", int(number), list(workers)]:
            place = None if rewound else job.place
            job.rings.append((number, [int(worker) for worker in workers], place))
        case ["lost", int(shard), int(records)]:
            lost = f"shard {shard} of the model lost {records:,} records with its server's machine"
            return f"{lost}, and training went on without them; --fsync always loses none"
        case ["end", str(state), int(total)]:
            job.end = (state, total)
        case _:
            return f"{str(entry)[:80]}: not an entry of the ledger"
    return ""


def _done(job: Replay, task: int, worker: int, offset: int) -> str:
    if job.is_done(task):
        return f"task {task} is done twice, now by worker-{worker}"
    # A lease that had expired: the task was returned last by this worker.
    late = worker == -1 and job.parts.get(task)
    job.done[task] = job.parts[task][-1][0] if late else worker
    if offset > job.offsets.pop(task, 0):
        return f"task {task} went on at record {offset}, and fewer were committed"
    return ""


def _restore(job: Replay, retired: int, offsets: dict[int, int], whole: str, line: int) -> None:
    kept = set(ids(whole))
    lost = sum(task >= retired and task not in kept for task in job.done)
    lost += max(0, job.retired - retired)
    empty = not (retired or offsets or kept)
    resumed = not (job.done or job.parts or job.restores or job.passes or empty)
    place = job.place if job.passes else None
    job.restores.append(Restore(line, lost, place, resumed, empty))
    job.retired, job.offsets = retired, offsets
    job.done = {task: by for task, by in job.done.items() if task < retired or task in kept}
    for task in kept:
        job.done.setdefault(task, RESTORED)
    job.parts = {task: each for task, each in job.parts.items() if job.is_done(task)}


def _move(job: Replay, number: int, place: PassPosition, rewound: bool) -> str:
    if rewound:  # later passes are trained again
        job.passes = {each: at for each, at in job.passes.items() if each < number}
    last, at = job.place
    if (number, place.records) < (last, at):
        back = f"record {place.records} of pass {number}"
        return f"the ring went back from record {at} of pass {last} to {back}, and restored nothing"
    if (known := job.passes.get(number)) is not None:
        place.before, place.left = known.before, max(known.left, place.left)
    job.passes[number] = place
    return ""


def ids(runs: str) -> Iterator[int]:
    """Yield the ids of ``3-7,9``."""
    for run in filter(None, runs.split(",")):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
