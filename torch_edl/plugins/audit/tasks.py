"""The records of each task of a ledger: computed from the shards, or as recorded for a stream.
Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.plugins.audit.replay import RESTORED, Replay

# Above this number of tasks, tasks are counted by id, and their records are not computed.
_MOST_TASKS = 1_000_000


@dataclass
class Tasks:
    """The tasks of a job whose records are known."""

    known: dict[int, Task]
    """Tasks by id. A stream lacks the tasks of the job that it resumed."""
    total: int
    """Number of tasks of the job, as far as known."""
    position: int | None = None
    """Number of records before the position of a ring; None if tasks are leased."""
    _before: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        sums = itertools.accumulate((task.records for task in self.known.values()), initial=0)
        self._before = dict(zip(self.known, sums, strict=False))

    def done_records(self, job: Replay, task: Task) -> int:
        """Return the number of records of a task that are done."""
        if self.position is not None:
            return min(task.records, max(0, self.position - self._before[task.id]))
        return task.records if job.is_done(task.id) else job.offsets.get(task.id, 0)

    def is_done(self, job: Replay, task: Task) -> bool:
        """Return whether a task is done."""
        if self.position is None:
            return job.is_done(task.id)
        return self.done_records(job, task) == task.records

    def worker_of(self, job: Replay, task: Task) -> str:
        """Return the worker that completed a task; ``ring`` if all members did, ``checkpoint`` if
        the job went on from a checkpoint that has it; empty if the task is open."""
        if not self.is_done(job, task):
            return ""
        if self.position is not None:
            return "ring"
        worker = job.done.get(task.id, RESTORED)
        return "checkpoint" if worker == RESTORED else f"worker-{worker}"


def tasks_of(config: JobConfig, job: Replay) -> Tasks | None:
    """Return the tasks of a job; None if they are not known, or too many."""
    total = job.end[1] if job.end is not None else 0
    if job.begun.get("of") == "stream":
        total = total or 1 + max([*job.done, *job.offsets, job.retired - 1], default=-1)
        known = {id: job.ranges[id] for id in sorted(job.ranges) if job.is_done(id)}
        return Tasks({id: Task(id, 0, *place) for id, place in known.items()}, total)
    if not job.begun.get("shards"):
        return None
    space = TaskSpace(
        [Shard(name, records) for name, records in job.begun["shards"]],
        job.begun["records_per_task"],
        epochs=job.begun["epochs"],
        seed=job.begun["seed"],
        shuffle=job.begun["shuffle"],
        batch_size=job.begun["batch_size"],
        max_steps=config.train.max_steps,
    )
    if total and space.tasks_per_epoch:
        space.extend(max(1, -(-total // space.tasks_per_epoch)))
    total = min(total or space.total, space.total)
    if total > _MOST_TASKS:
        return None
    position = job.place[1] if job.passes else None
    return Tasks({id: space.task(id) for id in range(total)}, total, position)


def epochs_of(tasks: Tasks, job: Replay) -> list[dict[str, Any]]:
    """Return a summary of each epoch, from the records of each task."""
    found: list[dict[str, Any]] = []
    for task in tasks.known.values():
        if task.epoch == len(found):
            found.append(
                {"epoch": task.epoch, "tasks": 0, "done": 0, "records": 0, "records_done": 0,
                 "workers": Counter(), "returned": Counter()}
            )  # fmt: skip
        epoch = found[task.epoch]
        epoch["tasks"] += 1
        epoch["done"] += tasks.is_done(job, task)
        epoch["records"] += task.records
        epoch["records_done"] += tasks.done_records(job, task)
        if worker := tasks.worker_of(job, task):
            epoch["workers"][worker] += 1
    for (id, why), count in job.returned.items():
        if (one := tasks.known.get(id)) is not None:
            found[one.epoch]["returned"][why] += count
    for epoch in found:
        epoch |= {key: dict(sorted(epoch[key].items())) for key in ("workers", "returned")}
    return found


def listed(tasks: Tasks, job: Replay) -> list[dict[str, Any]]:
    """Return each task with its records, its worker, and the leases that ended early."""
    return [
        {
            "task": task.id, "epoch": task.epoch, "shard": task.shard,
            "start": task.start, "end": task.end, "worker": tasks.worker_of(job, task),
            "returned": [
                {"worker": f"worker-{worker}", "offset": offset, "committed": committed,
                 "reason": why}
                for worker, offset, committed, why in job.parts.get(task.id, ())
            ],
        }
        for task in tasks.known.values()
    ]  # fmt: skip


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
