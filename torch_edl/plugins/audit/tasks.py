"""The records of the tasks of a ledger: computed from the shards, or as recorded for a stream. No
task of a data set is held in memory. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.plugins.audit.replay import RESTORED, Replay

MOST_EPOCHS = 1000
"""Number of epochs in a report: the newest ones."""
MOST_LISTED = 1_000_000
"""Number of tasks that ``--tasks`` lists: the first ones."""


@dataclass
class Tasks:
    """The tasks of a job whose records are known."""

    space: TaskSpace | None
    """Tasks of a data set; None for a stream."""
    known: dict[int, Task]
    """Done tasks of a stream by id, without those of the job that it resumed."""
    total: int
    """Number of tasks of the job, as far as known."""
    position: int | None = None
    """Number of records before the position of a ring; None if tasks are leased."""
    _ring: tuple[int, int] = field(init=False, default=(0, 0))  # open task, its done records

    def __post_init__(self) -> None:
        if self.space is not None and self.position is not None:
            all = self.space.total_records
            self._ring = self.space.at(self.position) if self.position < all else (self.total, 0)

    def task(self, id: int) -> Task | None:
        """Return a task; None if the job has no such task, or if its records are not known."""
        if self.space is None:
            return self.known.get(id)
        return self.space.task(id) if id < self.total else None

    def done_runs(self, job: Replay, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last task of each run of done tasks in a range."""
        if self.position is None:
            yield from job.done_runs(first, last)
        elif (end := min(last, self._ring[0] - 1)) >= first:
            yield first, end

    def partly_done(self, job: Replay) -> dict[int, int]:
        """Return the number of done records of the open tasks that have some."""
        if self.position is None:
            return job.offsets
        return {self._ring[0]: self._ring[1]} if self._ring[1] else {}

    def is_done(self, job: Replay, id: int) -> bool:
        """Return whether a task is done."""
        return job.is_done(id) if self.position is None else id < self._ring[0]

    def done_records(self, job: Replay, task: Task) -> int:
        """Return the number of records of a task that are done."""
        if self.is_done(job, task.id):
            return task.records
        return min(task.records, self.partly_done(job).get(task.id, 0))

    def worker_of(self, job: Replay, id: int) -> str:
        """Return the worker that completed a task; ``ring`` if all members did, ``checkpoint`` if
        the job went on from a checkpoint that has it; empty if the task is open."""
        if not self.is_done(job, id):
            return ""
        return "ring" if self.position is not None else _name(job.done.worker(id))

    def open_records(self, job: Replay) -> int:
        """Return the number of records of all tasks that are not done."""
        if self.space is None:
            return 0
        records = self.space.records_before
        done = sum(
            records(end + 1) - records(first)
            for first, end in self.done_runs(job, 0, self.total - 1)
        )
        done += sum(at for id, at in self.partly_done(job).items() if id < self.total)
        return records(self.total) - done


def _name(worker: int | None) -> str:
    return "checkpoint" if worker in (None, RESTORED) else f"worker-{worker}"


def tasks_of(config: JobConfig, job: Replay) -> Tasks | None:
    """Return the tasks of a job; None if they are not known."""
    begun, total = job.begun, job.end[1] if job.end is not None else 0
    if begun.get("of") == "stream":
        last = max(job.done.last, job.retired - 1, *job.offsets, -1)
        known = {id: Task(id, 0, *job.ranges[id]) for id in sorted(job.ranges) if job.is_done(id)}
        return Tasks(None, known, total or last + 1)
    if not begun.get("shards"):
        return None
    space = TaskSpace(
        [Shard(name, records) for name, records in begun["shards"]],
        begun.get("records_per_task", 1),
        epochs=begun.get("epochs", 1),
        seed=begun.get("seed", 0),
        shuffle=begun.get("shuffle", False),
        batch_size=begun.get("batch_size", 1),
        max_steps=config.train.max_steps,
    )
    if total and space.tasks_per_epoch:
        epochs = max(1, -(-total // space.tasks_per_epoch))
        if epochs <= begun.get("epochs", 1):
            space.extend(epochs)
    position = job.place[1] if job.passes else None
    return Tasks(space, {}, min(total or space.total, space.total), position)


def epochs_of(tasks: Tasks, job: Replay) -> list[dict[str, Any]]:
    """Return a summary of each epoch that began, at most of the newest :data:`MOST_EPOCHS`."""
    if tasks.space is None:
        return [_of_stream(tasks, job)] if tasks.known else []
    size, last = tasks.space.tasks_per_epoch, tasks.total - 1
    if not size:
        return []
    begun = [end for _, end in tasks.done_runs(job, 0, last)][-1:]
    returned = (id for id, _ in job.returned)
    begun += [id for id in (*tasks.partly_done(job), *returned) if id <= last]
    newest = max(begun, default=0) // size
    found = [
        _of_epoch(tasks, job, number)
        for number in range(max(0, newest + 1 - MOST_EPOCHS), newest + 1)
    ]
    for (id, why), count in sorted(job.returned.items()):
        if (at := id // size - newest - 1 + len(found)) >= 0 and id <= last:
            returned = found[at]["returned"]
            returned[why] = returned.get(why, 0) + count
    return found


def _of_epoch(tasks: Tasks, job: Replay, number: int) -> dict[str, Any]:
    assert tasks.space is not None
    records = tasks.space.records_before
    first = number * tasks.space.tasks_per_epoch
    last = min(first + tasks.space.tasks_per_epoch, tasks.total) - 1
    done = records_done = 0
    for begin, end in tasks.done_runs(job, first, last):
        done += end + 1 - begin
        records_done += records(end + 1) - records(begin)
    records_done += sum(at for id, at in tasks.partly_done(job).items() if first <= id <= last)
    workers: Counter[str] = Counter()
    if tasks.position is None:
        for begin, end, worker in job.done.runs(first, last):
            workers[_name(worker)] += end + 1 - begin
    if rest := done - workers.total():
        workers["checkpoint" if tasks.position is None else "ring"] += rest
    return {
        "epoch": number, "tasks": last + 1 - first, "done": done,
        "records": records(last + 1) - records(first), "records_done": records_done,
        "workers": dict(sorted(workers.items())), "returned": {},
    }  # fmt: skip


def _of_stream(tasks: Tasks, job: Replay) -> dict[str, Any]:
    records = sum(task.records for task in tasks.known.values())
    workers = Counter(tasks.worker_of(job, id) for id in tasks.known)
    returned: Counter[str] = Counter()
    for (id, why), count in job.returned.items():
        if id in tasks.known:
            returned[why] += count
    return {
        "epoch": 0, "tasks": len(tasks.known), "done": len(tasks.known),
        "records": records, "records_done": records,
        "workers": dict(sorted(workers.items())), "returned": dict(sorted(returned.items())),
    }  # fmt: skip


def listed(tasks: Tasks, job: Replay) -> list[dict[str, Any]]:
    """Return each task with its records, its worker, and the leases that ended early; at most the
    first :data:`MOST_LISTED`."""
    ids = tasks.known if tasks.space is None else range(tasks.total)
    found = (tasks.task(id) for id in itertools.islice(ids, MOST_LISTED))
    return [
        {
            "task": task.id, "epoch": task.epoch, "shard": task.shard,
            "start": task.start, "end": task.end, "worker": tasks.worker_of(job, task.id),
            "returned": [
                {"worker": f"worker-{worker}", "offset": offset, "committed": committed,
                 "reason": why}
                for worker, offset, committed, why in job.parts.get(task.id, ())
            ],
        }
        for task in found if task is not None
    ]  # fmt: skip


def without_range(tasks: Tasks, job: Replay) -> tuple[int | None, int]:
    """Return the first done task of a stream whose range a worker did not record, or None, and the
    number of tasks that a checkpoint had and whose range is not known."""
    first, unknown, ids = None, 0, iter(tasks.known)
    upcoming = next(ids, None)
    for begin, end, worker in job.done.runs():
        known, bare = 0, None
        at = begin
        while upcoming is not None and upcoming <= end:
            if upcoming >= begin:
                known += 1
                if bare is None and upcoming > at:
                    bare = at
                at = upcoming + 1
            upcoming = next(ids, None)
        if known == end + 1 - begin:
            continue
        if worker == RESTORED:
            unknown += end + 1 - begin - known
        elif first is None:
            first = at if bare is None else bare
    return first, unknown


def overlaps(tasks: Tasks, *, complete: bool) -> Iterator[tuple[bool, str]]:
    """Yield what is wrong with the ranges of a stream: (True, an overlap), or (False, a gap), if
    the stream is ``complete``: other tasks may fill a gap."""
    shards: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks.known.values():
        shards[task.shard].append(task)
    for shard, each in sorted(shards.items()):
        each.sort(key=lambda task: task.start)
        for one, next in itertools.pairwise(each):
            if next.start < one.end:
                both = f"tasks {one.id} and {next.id}"
                yield True, f"{shard}: record {next.start:,} is in {both}, which are both done"
            elif next.start > one.end and complete:
                gap = f"records {one.end:,} to {next.start - 1:,}"
                yield False, f"{shard}: {gap} are in no task"
