"""Replays a ledger: which tasks are done, who did each part, and if one counted twice. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

from torch_edl.plugins.audit.done_tasks import DoneTasks, Run
from torch_edl.typed_json import Count, Range, converter

# Problems that are listed; further ones are counted.
_LISTED = 20
RESTORED = -2
"""Worker of a task that a checkpoint, or the servers, had when the job went on from them."""
_MOST_TASKS = 1 << 62
_RUNS = re.compile(r"(?:\d{1,18}(?:-\d{1,18})?(?:,(?!$)|$))*")


class Begin(TypedDict):
    """What the ids of tasks mean."""

    of: NotRequired[str]
    """``tasks`` or ``stream``."""
    shards: NotRequired[list[tuple[str, Count]]]
    """Names and numbers of records."""
    unnamed: NotRequired[Count]
    records_per_task: NotRequired[Annotated[int, Range(1, 1 << 53)]]
    epochs: NotRequired[Annotated[int, Range(0, 1 << 40)]]
    batch_size: NotRequired[Annotated[int, Range(1, 1 << 53)]]
    seed: NotRequired[int]
    shuffle: NotRequired[bool]


_Worker = Annotated[int, Range(-1, 1 << 40)]
_KINDS: dict[str, Any] = {
    "begin": tuple[str, Begin],
    "cut": tuple[str, str, list[tuple[Count, Count, Count]]],
    "done": tuple[str, _Worker, Count, str],
    "back": tuple[str, _Worker, Count, Count, Count, str],
    "restored": tuple[str, Count, list[tuple[Count, Count]], str],
    "position": tuple[str, Count, Count, Count, Count, Count],
    "ring": tuple[str, Count, list[Count]],
    "lost": tuple[str, Count, Count],
    "training": tuple[str, Annotated[int, Range(1, 1 << 40)], Count],
    "end": tuple[str, str, Count],
}
"""Types of the entries by kind; ``docs/guarantees.md`` describes them."""
_CONVERTERS = {kind: converter(each) for kind, each in _KINDS.items()}


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
    """The job after all entries: the current training of a script, and the earlier ones."""

    training: int = 1
    """Number of the training; 1 for a model file."""
    earlier: list[Replay] = field(default_factory=list)
    """Earlier trainings of a script on servers. Those of a ring are in :attr:`passes`."""
    begun: Begin = field(default_factory=Begin)
    """What the ids of tasks mean; empty before the data was known."""
    done: DoneTasks = field(default_factory=DoneTasks)
    """Tasks that are done, with the worker of each; -1: unknown, since the lease had expired."""
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
    last_pass: int = 0
    """Number of the newest pass; 0 without one."""
    rings: list[tuple[int, list[int], tuple[int, int] | None]] = field(default_factory=list)
    """Number, members, and last known (pass, position) of each ring when it was formed; None if it
    went on from a checkpoint or from the beginning."""
    returned: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of returned leases by (task, reason)."""
    restores: list[Restore] = field(default_factory=list)
    end: tuple[str, int] | None = None
    """State of the ended job, or ``trained`` for an earlier training; and its number of tasks."""
    ends_restored: bool = False
    """True if nothing happened between the last restore and the end."""
    problems: list[str] = field(default_factory=list)

    def is_done(self, task: int) -> bool:
        """Return whether the task is done."""
        return task < self.retired or self.done.worker(task) is not None

    def done_runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last task of each run of done tasks in a range."""
        end = max(first - 1, min(self.retired - 1, last))
        for begin, next_end, _ in self.done.runs(end + 1, last):
            if begin > end + 1:
                if end >= first:
                    yield first, end
                first = begin
            end = next_end
        if end >= first:
            yield first, end

    @property
    def place(self) -> tuple[int, int]:
        """Last known pass and position of a ring."""
        return self.last_pass, self.passes[self.last_pass].records if self.passes else 0


def replay(entries: Iterable[tuple[int, float, list[Any]]], file: str) -> Replay:
    """Return the job after the entries; ``file`` is named by the problems."""
    job, rewound = Replay(), False
    trainings, problems = {1: job}, job.problems
    for number, _, entry in entries:
        problem = ""
        try:
            kind = entry[0] if entry and isinstance(entry[0], str) else ""
            found = _CONVERTERS[kind](entry)
            if kind == "training":
                job = _begin(trainings, job, found[1], found[2], number)
            else:
                problem = _apply(job, found, number, rewound)
        except (ValueError, KeyError):
            problem = f"{str(entry)[:80]}: not an entry of the ledger"
        rewound = entry[:1] == ["restored"] or (rewound and entry[:1] != ["position"])
        if problem and len(problems) < _LISTED:
            problems.append(f"{file}, line {number}: {problem}")
    job.earlier = [trainings[each] for each in sorted(trainings) if each < job.training]
    job.problems = problems
    return job


def _begin(
    trainings: dict[int, Replay], before: Replay, number: int, total: int, line: int
) -> Replay:
    """End the training ``before``, which had ``total`` tasks, and return the training that begins.
    This is the next training, or an earlier one again. An earlier one continues from a checkpoint,
    which a later entry names, or from the beginning."""
    before.end = ("trained", total)
    for later in [each for each in trainings if each > number]:
        del trainings[later]
    job = trainings.setdefault(number, Replay(training=number))
    if job.begun:
        _restore(job, 0, {}, [], line)
    job.end = None
    return job


def _apply(job: Replay, entry: tuple[Any, ...], line: int, rewound: bool) -> str:
    """Apply an entry of the types of ``_KINDS``. Return what is wrong with it, or an empty text.

    Raises:
        ValueError: ranges of tasks are malformed.
    """
    if entry[0] != "end":
        job.end, job.ends_restored = None, entry[0] == "restored"
    match entry:
        case ["begin", begun]:
            _check_size(begun)
            job.begun = begun
        case ["cut", shard, ranges]:
            for task, start, end in ranges:
                job.ranges[task] = (shard, start, end)
        case ["done", worker, offset, text]:
            for first, last in runs(text):
                if problem := _done(job, first, last, worker, offset):
                    return problem
        case ["back", worker, task, offset, committed, why]:
            if job.is_done(task):
                return f"task {task} is returned by worker-{worker} after it was done"
            job.offsets[task] = max(committed, job.offsets.get(task, 0))
            job.parts.setdefault(task, []).append((worker, offset, committed, why))
            job.returned[task, why] += 1
        case ["restored", retired, offsets, whole]:
            _restore(job, retired, dict(offsets), list(runs(whole)), line)
        case ["position", number, at, of, before, left]:
            return _move(job, number, PassPosition(at, of, before, left), rewound)
        case ["ring", number, workers]:
            job.rings.append((number, workers, None if rewound else job.place))
        case ["lost", shard, records]:
            lost = f"shard {shard} of the model lost {records:,} records with its server's machine"
            return f"{lost}, and training went on without them; --fsync always loses none"
        case ["end", state, total]:
            job.end = (state, total)
    return ""


def _check_size(begun: Begin) -> None:
    """Raise ValueError unless the number of tasks is possible."""
    size = begun.get("records_per_task", 1)
    tasks = sum(-(-records // size) for _, records in begun.get("shards", ()))
    if tasks * begun.get("epochs", 1) > _MOST_TASKS:
        raise ValueError("too many tasks")


def _done(job: Replay, first: int, last: int, worker: int, offset: int) -> str:
    twice = first if first < job.retired else None
    if twice is None:
        twice = job.done.first_in(first, last)
    if twice is not None:
        return f"task {twice} is done twice, now by worker-{worker}"
    # A lease that had expired: the task was returned last by this worker.
    late = sorted(task for task in job.parts if first <= task <= last) if worker == -1 else []
    begin = first
    for task in late:
        if task > begin:
            job.done.add(begin, task - 1, worker)
        job.done.add(task, task, job.parts[task][-1][0])
        begin = task + 1
    if begin <= last:
        job.done.add(begin, last, worker)
    if offset:
        for task in range(first, last + 1):
            if offset > job.offsets.pop(task, 0):
                return f"task {task} went on at record {offset}, and fewer were committed"
    elif last - first < len(job.offsets):
        for task in range(first, last + 1):
            job.offsets.pop(task, None)
    else:
        job.offsets = {t: at for t, at in job.offsets.items() if not first <= t <= last}
    return ""


def _restore(
    job: Replay, retired: int, offsets: dict[int, int], whole: list[tuple[int, int]], line: int
) -> None:
    empty = not (retired or offsets or whole)
    resumed = not (job.done or job.parts or job.restores or job.passes or empty)
    before, kept = DoneTasks(), 0
    for run in job.done.take_from(retired):
        before.add(*run)
    lost = max(0, job.retired - retired) + sum(map(_count, before.runs()))
    for first, last in whole:
        begin = max(first, retired)
        for run in before.runs(begin, last):
            if run[0] > begin:
                job.done.add(begin, run[0] - 1, RESTORED)
            job.done.add(*run)
            kept, begin = kept + _count(run), run[1] + 1
        if begin <= last:
            job.done.add(begin, last, RESTORED)
    place = job.place if job.passes else None
    job.restores.append(Restore(line, lost - kept, place, resumed, empty))
    job.retired, job.offsets = retired, offsets
    job.parts = {task: each for task, each in job.parts.items() if job.is_done(task)}


def _count(run: Run) -> int:
    return run[1] - run[0] + 1


def _move(job: Replay, number: int, place: PassPosition, rewound: bool) -> str:
    if rewound:  # later passes are trained again
        job.passes = {each: at for each, at in job.passes.items() if each < number}
        job.last_pass = max(job.passes, default=0)
    last, at = job.place
    if (number, place.records) < (last, at):
        back = f"record {place.records} of pass {number}"
        return f"the ring went back from record {at} of pass {last} to {back}, and restored nothing"
    if (known := job.passes.get(number)) is not None:
        place.before, place.left = known.before, max(known.left, place.left)
    job.passes[number], job.last_pass = place, number
    return ""


def runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last task of each range of ``3-7,9``.

    Raises:
        ValueError: the text is malformed, or its ranges are not in ascending order.
    """
    if not _RUNS.fullmatch(text):
        raise ValueError(f"{text[:80]}: not ranges of tasks")
    before = -1
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        found = int(first), int(last or first)
        if not before < found[0] <= found[1]:
            raise ValueError(f"{run}: not in ascending order")
        before = found[1]
        yield found
