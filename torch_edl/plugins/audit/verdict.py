"""The report of an audit, from the folder of a job: the ledger, the last status, and the newest
checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.plugins.audit.marks import compare
from torch_edl.plugins.audit.passes import AuditedPass, passes_of
from torch_edl.plugins.audit.records import Records
from torch_edl.plugins.audit.replay import Replay, replay
from torch_edl.plugins.audit.tasks import (
    MOST_EPOCHS,
    MOST_LISTED,
    Tasks,
    epochs_of,
    listed,
    overlaps,
    tasks_of,
    without_range,
)

SCHEMA = 1
"""Version of the JSON of ``torch-edl audit --json``."""
_NOT_PROVEN = "not proven, for the reasons below"

Progress = Callable[[int, int], None]
"""Receives the bytes of the ledger that were read, and the size of the ledger."""


class _Audit:
    """The audit of one job."""

    def __init__(self, folder: JobFolder, progress: Progress) -> None:
        self._folder = folder
        self._config: JobConfig = folder.config()
        self._running = folder.has_master()
        self.records = Records(folder.dir, runs=self._running, progress=progress)
        file = folder.dir / "tasks.jsonl"
        self.job: Replay = replay(self.records.entries(), str(file))
        self.status = folder.last_status()
        self.problems = [*self.records.problems, *self.job.problems]
        self.unproven: list[str] = []
        self.notes: list[str] = []
        state = str(self.status.get("state", ""))
        end = self.job.end[0] if self.job.end is not None else ""
        if not self._running and not self.records.problems and state in ENDED and end != state:
            text = f"the job has {state}, but the ledger does not say so: the end is missing"
            self.problems.append(f"{file}, line {self.records.lines + 1}: {text}")
        self.finished = end == "finished"
        self.tasks: Tasks | None = tasks_of(self._config, self.job)
        self.parts = [(each, tasks_of(self._config, each)) for each in self.job.earlier]
        """The earlier trainings of a script on servers, and the current one; see
        :attr:`Replay.earlier`."""
        self.parts.append((self.job, self.tasks))
        self.epochs = [
            {"training": job.training, **epoch}
            for job, tasks in self.parts
            if tasks is not None
            for epoch in epochs_of(tasks, job)
        ]
        if self.epochs and self.epochs[0]["epoch"]:
            text = f"the report has the newest {MOST_EPOCHS:,} epochs; all epochs were checked"
            self.notes.append(text)
        self.passes: list[AuditedPass] = []
        self._left: list[str] = []
        if self.tasks is None:  # a model file has epochs instead
            self.passes, unseen, self._left = passes_of(self.job)
            if unseen:
                text = f"{unseen:,} records were trained in passes that were too short for a report"
                self.notes.append(f"{text}; later reports have their sum")
        self._check_ranges()
        self._check_complete()
        self._check_status()
        self.problems += compare(folder, self._config, self.job, self.tasks)

    @property
    def _is_script(self) -> bool:
        return self._config.kind == "script"

    def _check_complete(self) -> None:
        """Compare what is done with all records, once the job has finished."""
        if self._began_nothing:
            if not self._running or self._config.kind == "evaluate":
                self.unproven.append(_NOTHING.get(self._config.kind, "the job began no task"))
            return
        for each in self.passes:
            if not each.of:
                text = f"pass {each.number} trained {each.position:,} records of an IterableDataset"
                why = "the job does not know how many records the data have"
                self.unproven.append(f"{text}, whose length is unknown: {why}")
        text = "the script left its loop, drop_last dropped them, or they were lost"
        for job, tasks in self.parts[:-1]:
            if tasks is not None and (lacks := tasks.open_records(job)):
                left = f"training {job.training}: {lacks:,} records are not done"
                self.unproven.append(f"{left}: {text}")
        missing = self._missing()
        if not self.finished:
            self.notes += missing
        elif self._is_script:
            self.unproven += [f"{each}: {text}" for each in missing]
        else:
            self.problems += [f"the job finished, but {each}" for each in missing]

    def _missing(self) -> list[str]:
        job = self.job
        if self.passes:
            return self._left
        if self.tasks is not None and (lacks := self.tasks.open_records(job)):
            return [f"{lacks:,} records are not done"]
        if job.passes:
            return []
        total = job.end[1] if job.end is not None else 0
        open = total - sum(end + 1 - first for first, end in job.done_runs(0, total - 1))
        beyond = job.done.first_in(total)
        if beyond is not None and total > 0:
            self.problems.append(f"task {beyond} is done, but the job had {total:,} tasks only")
        return [f"{open:,} tasks are not done"] if open > 0 else []

    def _check_ranges(self) -> None:
        job, tasks = self.job, self.tasks
        if job.begun.get("of") == "stream" and tasks is not None:
            for wrong, text in overlaps(tasks, complete=self.finished):
                removed = not wrong and self._config.data.skip_damaged
                why = ": the brokers removed them, or they were no records" if removed else ""
                (self.notes if removed else self.problems).append(f"{text}{why}")
            bare, unknown = without_range(tasks, job)
            if bare is not None:
                self.problems.append(f"task {bare} is done, and its records are not recorded")
            earlier = job.retired - sum(task < job.retired for task in tasks.known)
            if unknown or (earlier and not any(each.resumed for each in job.restores)):
                count = f"the records of {max(unknown, earlier):,} tasks of the stream"
                self.unproven.append(f"{count} are not known: a checkpoint had these tasks")
            elif earlier:
                text = f"{earlier:,} tasks were done by the job that this one resumed; audit that"
                self.notes.append(f"{text} job, too")
        elif job.begun and tasks is None:
            self.notes.append("there are very many files: tasks are counted, not records")

    def _check_status(self) -> None:
        """Add what the job itself said that it left out."""
        status = self.status
        if lost := status.get("updates_lost", 0):
            text = f"{lost:,} updates that a server had acknowledged were lost with its machine"
            self.problems.append(f"{self._folder.status_file}: {text}")
        if damaged := status.get("damaged", 0):
            self.notes.append(f"{damaged:,} damaged records were left out (--skip-damaged)")
        if steps := status.get("nan_steps", 0):
            text = f"{steps:,} minibatches whose loss was not finite were left out (--on-nan skip)"
            self.notes.append(text)

    def verdict(self) -> tuple[str, str]:
        """Return the verdict, and the verdict in words."""
        if self.problems:
            return "wrong", "the audit does not hold"
        if self.finished or (self._began_nothing and self.unproven):
            if self.unproven:
                return "unproven", _NOT_PROVEN
            if self._config.kind == "predict":
                return "holds", "each record was predicted once"
            left_out = "each record that was not left out" if self._leaves_out else ""
            return "holds", f"{left_out or 'each training record'} counted once"
        if self._began_nothing:
            return "incomplete", "running; no task or pass has begun yet"
        state = self.job.end[0] if self.job.end is not None else "not running, and not over"
        if self.job.end is None and self._running:
            state = "running"
        if self.unproven:
            return "incomplete", f"{state}; not all that is done is proven, for the reasons below"
        return "incomplete", f"{state}; each record that is done counted once"

    @property
    def _began_nothing(self) -> bool:
        return not any(job.begun or job.passes for job, _ in self.parts)

    @property
    def _leaves_out(self) -> bool:
        return bool(self.status.get("damaged") or self.status.get("nan_steps"))


_NOTHING = {
    "script": "the script reported no loop over job.loader(): only the script knows its records",
    "evaluate": "the job evaluated a model and trained nothing; evaluations have no ledger",
}


def audit(
    folder: JobFolder,
    *,
    tasks: bool = False,
    progress: Progress = lambda done, size: None,
) -> dict[str, Any]:
    """Return the report, as ``docs/schemas/audit.json`` describes it.

    Args:
        tasks: list each task.
    """
    found = _Audit(folder, progress)
    verdict, text = found.verdict()
    if tasks and any(part is not None and part.total > MOST_LISTED for _, part in found.parts):
        found.notes.append(f"the report lists the first {MOST_LISTED:,} tasks; all were checked")
    job = found.job
    return {
        "schema": SCHEMA,
        "job": folder.name,
        "verdict": verdict,
        "text": text,
        "problems": found.problems,
        "unproven": found.unproven,
        "notes": [*found.notes, *(note for job, _ in found.parts for note in _restores(job))],
        "lines": found.records.lines,
        "restores": sum(not each.resumed for job, _ in found.parts for each in job.restores),
        "ring": [
            {"pass": each.number, "position": each.position, "records": each.of}
            for each in found.passes
        ],
        "rings": [
            {"ring": number, "workers": members}
            | dict(zip(("pass", "position"), place or (None, None), strict=True))
            for number, members, place in job.rings
        ],
        "epochs": found.epochs,
        "tasks": [
            {"training": job.training, **task}
            for job, part in found.parts
            if tasks and part is not None
            for task in listed(part, job)
        ],
    }


def without_ledger(name: str, why: str) -> dict[str, Any]:
    """Return the report about a job whose ledger cannot be read, and the reason."""
    lists = ("problems", "notes", "ring", "rings", "epochs", "tasks")
    return {
        "schema": SCHEMA,
        "job": name,
        "verdict": "unproven",
        "text": _NOT_PROVEN,
        "unproven": [why],
        "lines": 0,
        "restores": 0,
        **{each: [] for each in lists},
    }


def _restores(job: Replay) -> list[str]:
    """Return a remark on each time that the job went on from another progress."""
    notes = []
    for each in job.restores:
        if job.ends_restored and each is job.restores[-1]:
            text = "the job ended with the progress of its last checkpoint"
            text += f"; {_tasks(each.lost)} done before" if each.lost else ""
        elif each.resumed:
            text = "the job resumed the progress of an earlier job; audit that, too"
        elif each.place is not None:
            number, at = each.place
            text = "no member of the ring was left; a new ring went on from a checkpoint, or from "
            text += f"the beginning; the last report was of record {at:,} of pass {number}"
        elif each.empty:
            text = f"the job began again; {_tasks(each.lost)} done before"
        elif each.lost:
            text = "the job went back to a checkpoint, or to what its servers had; "
            text += f"{_tasks(each.lost)} to be done again"
        else:
            text = "the job went on from a checkpoint with all tasks that were done"
        notes.append(f"line {each.line}: {text}")
    return notes


def _tasks(count: int) -> str:
    return "1 task was" if count == 1 else f"{count:,} tasks were"
