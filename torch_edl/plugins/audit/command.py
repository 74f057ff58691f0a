"""``torch-edl audit``: reads the ledger of a job, checks it, and prints the verdict."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.progress import Progress

from torch_edl.cli.platforms import find
from torch_edl.cli.terminal import stderr, stdout, table
from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import JobHandle
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.audit.verdict import audit, without_ledger

_COLOURS = {"holds": "green", "incomplete": "yellow", "unproven": "yellow", "wrong": "red"}
# Rings that are listed; the JSON has all.
_RINGS = 20


def main(args: argparse.Namespace) -> int:
    """Audit a job. Return 1 if a record was lost or counted twice, if the folder was changed, or if
    nothing proves that each record counted once; otherwise 0.

    Raises:
        UsageError: no such job, or its ledger is on a volume of a cluster.
        EdlError: the cluster of the job does not answer.
    """
    job = find(args)
    report = _here(job, args) if isinstance(job, LocalJob) else _elsewhere(job)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        _print(report)
    return int(report["verdict"] in ("wrong", "unproven"))


def _here(job: LocalJob, args: argparse.Namespace) -> dict[str, Any]:
    """Return the report about a job of this machine, and show how much of a long ledger is read."""
    with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
        task = bar.add_task("reading the ledger", total=None, visible=False)

        def show(done: int, size: int) -> None:
            bar.update(task, completed=done, total=size, visible=True)

        return audit(job, tasks=args.tasks, progress=show)


def _elsewhere(job: JobHandle) -> dict[str, Any]:
    """Return the report about a job on a cluster, whose master keeps the ledger."""
    if claim := getattr(job.config().platform_config, "state_claim", ""):
        raise UsageError(
            f"{job.name}: the ledger is on the claim {claim} (--state-claim); mount it, set "
            f"TORCH_EDL_HOME to its folder, and run torch-edl audit {job.name} there"
        )
    return without_ledger(
        job.name,
        "the job has no --state-claim, so its ledger is in the pod of its master and is lost with "
        "that pod; to keep the ledger, start the next job with --state-claim NAME",
    )


def _print(report: dict[str, Any]) -> None:
    console = stdout()
    style = f"bold {_COLOURS[report['verdict']]}"
    console.print(f"{report['job']}: {report['text']}", style=style, soft_wrap=True)
    for problem in report["problems"]:
        console.print(f"  {problem}", style="red", soft_wrap=True)
    for reason in report["unproven"]:
        console.print(f"  not proven: {reason}", style="yellow", soft_wrap=True)
    for note in report["notes"]:
        console.print(f"  {note}", soft_wrap=True)
    for part in (_epochs, _passes, _rings, _tasks):
        part(report, console)


def _epochs(report: dict[str, Any], console: Console) -> None:
    if not report["epochs"]:
        return
    epochs = table("epoch", "tasks>", "done>", "records>", "workers", "returned to the queue")
    for each in report["epochs"]:
        workers = ", ".join(f"{name} {count:,}" for name, count in each["workers"].items())
        back = ", ".join(f"{why} {count:,}" for why, count in each["returned"].items())
        count, done = f"{each['tasks']:,}", f"{each['done']:,}"
        records = f"{each['records_done']:,} of {each['records']:,}"
        epochs.add_row(_of_training(each, report), count, done, records, workers, back or "none")
    console.print(epochs)


def _of_training(epoch: dict[str, Any], report: dict[str, Any]) -> str:
    """Return the number of an epoch, prefixed with its training if the job has several."""
    number = str(epoch["epoch"] + 1)
    several = report["epochs"][-1]["training"] > 1
    return f"{epoch['training']}: {number}" if several else number


def _passes(report: dict[str, Any], console: Console) -> None:
    if not report["ring"]:
        return
    passes = table("pass", "records>")
    for each in report["ring"]:
        of = f"{each['records']:,}" if each["records"] else "unknown"
        passes.add_row(str(each["pass"]), f"{each['position']:,} of {of}")
    console.print(passes)


def _rings(report: dict[str, Any], console: Console) -> None:
    if not report["rings"]:
        return
    rings = table("ring>", "formed at", "workers, which make each update together")
    for each in report["rings"][-_RINGS:]:
        place = "a checkpoint, or the beginning"
        if each["position"] is not None:
            place = f"record {each['position']:,}"
            place += f" of pass {each['pass']}" if report["ring"] else ""
        rings.add_row(str(each["ring"]), place, ", ".join(f"worker-{n}" for n in each["workers"]))
    console.print(rings)
    if (more := len(report["rings"]) - _RINGS) > 0:
        console.print(f"  {more:,} earlier rings: --json lists all", soft_wrap=True)


def _tasks(report: dict[str, Any], console: Console) -> None:
    if not report["tasks"]:
        return
    tasks = table("task>", "epoch>", "records", "worker", "earlier leases")
    for each in report["tasks"]:
        place = f"{each['shard']} {each['start']:,} to {each['end'] - 1:,}"
        back = "; ".join(
            f"{b['worker']}: {b['reason']}, {b['committed']:,} committed" for b in each["returned"]
        )
        row = (str(each["task"]), _of_training(each, report), place, each["worker"], back)
        tasks.add_row(*row)
    console.print(tasks)
