"""``torch-edl audit``: reads the ledger of a job, checks it, and prints the verdict."""

from __future__ import annotations

import argparse
import json
from typing import Any

from torch_edl.cli.terminal import stdout, table
from torch_edl.launch.jobs.folder import find
from torch_edl.plugins.audit.verdict import audit

_COLOURS = {"holds": "green", "incomplete": "yellow", "wrong": "red"}


def main(args: argparse.Namespace) -> int:
    """Audit a job; return 1 if a record was lost or counted twice, or the folder was changed.

    Raises:
        UsageError: no such job.
    """
    job = find(args.job)
    report = audit(job, tasks=args.tasks)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        _print(report)
    return int(report["verdict"] == "wrong")


def _print(report: dict[str, Any]) -> None:
    console = stdout()
    style = f"bold {_COLOURS[report['verdict']]}"
    console.print(f"{report['job']}: {report['text']}", style=style, soft_wrap=True)
    for problem in report["problems"]:
        console.print(f"  {problem}", style="red", soft_wrap=True)
    for note in report["notes"]:
        console.print(f"  {note}", soft_wrap=True)
    if report["epochs"]:
        epochs = table("epoch", "tasks>", "done>", "records>", "workers", "returned to the queue")
        for each in report["epochs"]:
            workers = ", ".join(f"{name} {count:,}" for name, count in each["workers"].items())
            back = ", ".join(f"{why} {count:,}" for why, count in each["returned"].items())
            count, done = f"{each['tasks']:,}", f"{each['done']:,}"
            records = f"{each['records_done']:,} of {each['records']:,}"
            epochs.add_row(str(each["epoch"] + 1), count, done, records, workers, back or "none")
        console.print(epochs)
    if report["tasks"]:
        tasks = table("task>", "epoch>", "records", "worker", "earlier leases")
        for each in report["tasks"]:
            place = f"{each['shard']} {each['start']:,} to {each['end'] - 1:,}"
            back = "; ".join(
                f"{b['worker']}: {b['reason']}, {b['committed']:,} committed"
                for b in each["returned"]
            )
            row = (str(each["task"]), str(each["epoch"] + 1), place, each["worker"], back)
            tasks.add_row(*row)
        console.print(tasks)
