"""The report of an audit, from the folder of a job: the ledger, the last status, and the newest
checkpoint."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from torch_edl.checkpoint import layout
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import CheckpointError
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.plugins.audit.records import read
from torch_edl.plugins.audit.replay import Replay, replay

SCHEMA = 1
"""Version of the JSON of ``torch-edl audit --json``."""
# Above this number of tasks, tasks are counted by id, and their records are not computed.
_MOST_TASKS = 1_000_000


def audit(folder: JobFolder, *, tasks: bool = False) -> dict[str, Any]:
    """Return the report, as ``docs/guarantees.md`` describes it. ``tasks`` lists each task."""
    config, found, status = folder.config(), read(folder.dir), folder.last_status()
    job = replay(found.entries, str(folder.dir / "tasks.jsonl"))
    problems, state = [*found.problems, *job.problems], str(status.get("state", ""))
    if not found.problems and state in ENDED and (job.end is None or job.end[0] != state):
        file = folder.dir / "tasks.jsonl"
        text = f"the job has {state}, and the ledger does not end so: lines are missing at the end"
        problems.append(f"{file}, line {found.lines + 1}: {text}")
    space = _space(config, job)
    problems += _manifest(config, job, space)
    finished = job.end is not None and job.end[0] == "finished"
    epochs = _epochs(space, job) if space is not None else []
    missing = _missing(job, epochs)
    if finished and missing:
        problems.append(f"the job finished, and {missing}")
    if problems:
        verdict, text = "wrong", "the audit does not hold"
    elif finished:
        verdict, text = "holds", "each training record counted once"
    else:
        so_far = "running or dead" if job.end is None else job.end[0]
        verdict, text = "incomplete", f"{so_far}; each record that is done counted once"
    return {
        "schema": SCHEMA,
        "job": folder.name,
        "verdict": verdict,
        "text": text,
        "problems": problems,
        "notes": _notes(job, space, missing),
        "lines": found.lines,
        "restores": job.restores,
        "ring": [
            {"pass": number, "position": at, "records": of}
            for number, (at, of) in sorted(job.position.items())
        ],
        "epochs": epochs,
        "tasks": _tasks(space, job) if tasks and space is not None else [],
    }


def _space(config: JobConfig, job: Replay) -> TaskSpace | None:
    """Return the tasks of the job; None for a ring, a stream, or too many tasks."""
    shards, total = job.begun.get("shards"), job.end[1] if job.end is not None else 0
    if job.position or not shards:
        return None
    space = TaskSpace(
        [Shard(name, records) for name, records in shards],
        job.begun["records_per_task"],
        epochs=job.begun["epochs"],
        seed=job.begun["seed"],
        shuffle=job.begun["shuffle"],
        batch_size=job.begun["batch_size"],
        max_steps=config.train.max_steps,
    )
    if total and space.tasks_per_epoch:
        space.extend(max(1, -(-total // space.tasks_per_epoch)))
    return space if space.total <= _MOST_TASKS else None


def _missing(job: Replay, epochs: list[dict[str, Any]]) -> str:
    """Return what is not done of all records; empty if all are."""
    for number, (at, of) in sorted(job.position.items()):
        if at < of:
            return f"the ring is at record {at:,} of {of:,} of pass {number}"
    if job.position:
        return ""
    if epochs:
        lacks = sum(each["records"] - each["records_done"] for each in epochs)
        return f"{lacks:,} records are not done" if lacks else ""
    total = job.end[1] if job.end is not None else 0
    count = min(job.retired, total) + sum(job.retired <= task < total for task in job.done)
    return f"{total - count:,} tasks are not done" if count < total else ""


def _epochs(space: TaskSpace, job: Replay) -> list[dict[str, Any]]:
    """Return a summary of each epoch, from the records of each task."""
    found: list[dict[str, Any]] = []
    back: dict[int, Counter[str]] = {}
    for (task, why), count in job.returned.items():
        back.setdefault(space.epoch_of(task), Counter())[why] += count
    total = job.end[1] if job.end is not None and job.end[1] else space.total
    for one in map(space.task, range(min(total, space.total))):
        if one.epoch == len(found):
            reasons = dict(sorted(back.get(one.epoch, {}).items()))
            found.append(
                {"epoch": one.epoch, "tasks": 0, "done": 0, "records": 0, "records_done": 0,
                 "workers": Counter(), "returned": reasons}
            )  # fmt: skip
        epoch, is_done = found[one.epoch], job.is_done(one.id)
        epoch["tasks"] += 1
        epoch["done"] += is_done
        epoch["records"] += one.records
        epoch["records_done"] += one.records if is_done else job.offsets.get(one.id, 0)
        if is_done:
            epoch["workers"][worker_of(job, one.id)] += 1
    for epoch in found:
        epoch["workers"] = dict(sorted(epoch["workers"].items()))
    return found


def worker_of(job: Replay, task: int) -> str:
    """Return the worker that completed a task, or ``checkpoint``; empty if the task is open."""
    worker = job.done.get(task)
    if worker is None:
        return "checkpoint" if job.is_done(task) else ""
    return f"worker-{worker}"


def _tasks(space: TaskSpace, job: Replay) -> list[dict[str, Any]]:
    return [
        {
            "task": task.id, "epoch": task.epoch, "shard": task.shard,
            "start": task.start, "end": task.end, "worker": worker_of(job, task.id),
            "returned": [
                {"worker": f"worker-{worker}", "offset": offset, "committed": committed,
                 "reason": why}
                for worker, offset, committed, why in job.parts.get(task.id, ())
            ],
        }
        for task in map(space.task, range(space.total))
    ]  # fmt: skip


def _manifest(config: JobConfig, job: Replay, space: TaskSpace | None) -> list[str]:
    """Compare the newest checkpoint of this job with the ledger."""
    root = config.checkpoint.dir
    if not root or space is None:
        return []
    with contextlib.suppress(CheckpointError, OSError):
        for path in reversed(layout.complete(root)):
            manifest = layout.read(path)
            if manifest.job != config.name or not manifest.on_servers:
                continue
            marks = manifest.watermarks
            early = range(job.retired, min(marks.retired_before, space.total))
            lacks = next((task for task in early if not job.is_done(task)), None)
            if lacks is not None:
                text = f"task {lacks} is in the model, and not done by the ledger"
                return [f"{path / 'manifest.json'}: {text}"]
            end = job.end is not None and job.end[0] == "finished"
            done = [task for task in job.done if end and task < space.total]
            for task in done:
                if marks.offset(task) < space.task(task).records:
                    text = f"task {task} is done by the ledger, and not in the last model"
                    return [f"{path / 'manifest.json'}: {text}"]
            break
    return []


def _notes(job: Replay, space: TaskSpace | None, missing: str) -> list[str]:
    notes = [missing] if missing else []
    if job.restores:
        notes.append(f"{job.restores} times the job went on from a checkpoint or the beginning")
    if job.position:
        for number, (at, of) in sorted(job.position.items()):
            notes.append(f"ring, pass {number}: position {at:,} of {of:,} records")
    elif space is None and job.begun:
        notes.append("the ranges of records are not computed: a stream, or very many tasks")
    return notes
