"""Compares the newest checkpoint of a job that has ended with its ledger."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from pathlib import Path

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import run_id
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.config.parts import training_dir
from torch_edl.errors import CheckpointError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.audit.replay import Replay
from torch_edl.plugins.audit.tasks import Tasks


def compare(folder: JobFolder, config: JobConfig, job: Replay, tasks: Tasks | None) -> list[str]:
    """Return the differences. A job that has not ended is not compared: its ledger may be a second
    older than its checkpoint."""
    if job.end is None or job.end[0] == "failed" or not config.checkpoint.dir:
        return []
    # In a ring, this number is 1 for all trainings: the numbers of passes continue.
    found = _newest(folder, config, training_dir(config.checkpoint.dir, job.training))
    if found is None:
        return []
    path, manifest = found
    problem = ""
    if tasks is None:
        problem = _of_script(manifest, job)
    elif tasks.position is None or job.end[0] == "finished":
        problem = _of_tasks(manifest, job, tasks)
    return [f"{path / layout.MANIFEST}: {problem}"] if problem else []


def _newest(folder: JobFolder, config: JobConfig, root: Path) -> tuple[Path, Manifest] | None:
    """Return the newest checkpoint under ``root`` that this run of the job wrote; None if there is
    none."""
    master = folder.master()
    with contextlib.suppress(CheckpointError, OSError):
        for path in reversed(layout.complete(root)):
            found = layout.read(path)
            run = run_id(config.name, master.token) if master is not None else found.run
            if (found.job, found.run) == (config.name, run):
                return path, found
    return None


def _of_tasks(manifest: Manifest, job: Replay, tasks: Tasks) -> str:
    assert job.end is not None
    marks, finished = manifest.watermarks, job.end[0] == "finished"
    for id in sorted(_candidates(manifest, job, tasks)):
        if (task := tasks.task(id)) is None:
            continue
        mark, done = min(marks.offset(task.id), task.records), tasks.done_records(job, task)
        # A checkpoint may have records that were not reported yet, but no task that was not.
        if task.id < marks.retired_before and done < task.records:
            return f"task {task.id} is in the model, and not done by the ledger"
        if finished and done > mark:
            return f"task {task.id} is done by the ledger, and not in the last model"
        if job.ends_restored and done != mark:
            had = f"{done:,} records of task {task.id} by the ledger"
            return f"the job ended with {had}, and the checkpoint has {mark:,}"
    return ""


def _candidates(manifest: Manifest, job: Replay, tasks: Tasks) -> set[int]:
    """Return the tasks to compare: if the checkpoint differs from the ledger, it differs in one of
    them. They are the tasks that are done in part, the first open task of the ledger that the
    checkpoint has completely, and the first done task of the ledger that the checkpoint lacks."""
    marks = manifest.watermarks
    found = {*marks.offsets, *tasks.partly_done(job)}
    open, last = 0, tasks.total - 1
    for first, end in tasks.done_runs(job, 0, min(marks.retired_before - 1, last)):
        open = end + 1 if first == 0 else open
        break
    if open < marks.retired_before:
        found.add(open)
    if tasks.space is None:
        done: Iterable[int] = (id for id in tasks.known if id >= marks.retired_before)
    else:
        runs = tasks.done_runs(job, marks.retired_before, last)
        done = (id for first, end in runs for id in range(first, end + 1))
    found.update(itertools.islice((id for id in done if id not in marks.offsets), 1))
    return found


def _of_script(manifest: Manifest, job: Replay) -> str:
    found = (manifest.data.get(name, 0) for name in ("pass", "records"))
    place = tuple(value if isinstance(value, int) else 0 for value in found)
    last = max(job.passes, default=-1)
    if place[0] > last and not place[1]:
        return ""  # between two passes, or after the last one
    if job.passes and place > job.place:
        at, ring = f"record {place[1]:,} of pass {place[0]}", "record {1:,} of pass {0}"
        return f"the model is at {at}, and the ring was at {ring.format(*job.place)} by the ledger"
    return ""
