"""``torch-edl status`` and ``list``: one job of this machine with its processes, and all jobs."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.text import Text

from torch_edl.cli import which
from torch_edl.cli.progress import TRAINS, duration, metrics_text, number
from torch_edl.cli.terminal import stdout, table

_STYLES = {"running": "green", "finished": "green", "failed": "red", "dead": "red"}


def show_job(args: argparse.Namespace) -> int:
    """Prints the status that the master of a job reports, or the last one in the job's folder.

    Raises:
        UsageError: there is no such job.
    """
    job = which.find(args)
    found = job.report()
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    console = stdout()
    head = Text(found["job"], style="bold")
    head.append(f"  {found['state']}", style=_STYLES.get(found["state"], "default"))
    console.print(head, soft_wrap=True)
    for label, value in (*_rows(found), ("logs", job.logs)):
        console.print(f"  {label:<11} {value}", soft_wrap=True)
    if found["state"] == "dead" and found.get("kind") == "train":
        console.print(f"  torch-edl continue {job.name} continues it", soft_wrap=True)
    if found["processes"]:
        processes = table("process", "pid>", "state", "address", "log")
        processes.columns[-1].overflow = "fold"
        for p in found["processes"]:
            ended = f" ({p['exit']})" if p.get("exit") else ""
            log = str(p.get("log", "")).removeprefix(f"{job.logs}/")
            name = f"{p['role']}-{p['id']}"
            processes.add_row(name, str(p["pid"]), p["state"] + ended, p["address"], log)
        console.print(processes)
    return 0


def list_jobs(args: argparse.Namespace) -> int:
    """Prints a line for each job, the newest first."""
    reports = [{**job.report(), "started": job.started()} for job in which.find_all(args)]
    if args.json:
        print(json.dumps(reports, indent=1))
        return 0
    if not reports:
        where = "in this namespace" if which.on_cluster(args) else "on this machine"
        stdout().print(f"no jobs {where}; torch-edl run starts one")
        return 0
    jobs = table("job", "state", "started", "strategy", "records>")
    for found in reports:
        state = Text(found["state"], style=_STYLES.get(found["state"], "default"))
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(found["started"]))
        jobs.add_row(found["job"], state, started, found["strategy"], _records(found))
    stdout().print(jobs)
    return 0


def _records(found: dict[str, Any]) -> str:
    """``41 of 60``; a dash where it is not known how many there are."""
    done, total = found["records"]["done"], found["records"]["total"]
    return f"{done:,} of {total:,}" if total else "-"


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of a job: label and value."""
    tasks, rates, loss = found["tasks"], found["rates"], found.get("loss")
    trains = found.get("kind") in TRAINS
    reason, evaluations = found.get("reason"), found.get("evaluations")
    rows = [
        ("strategy", found["strategy"] + (f": {reason}" if reason else "")),
        ("records", _records(found)),
        ("epoch", _epoch(found)),
        (
            "tasks",
            f"{tasks['todo']:,} to do, {tasks['doing']:,} at work, {tasks['done']:,} done"
            if any(tasks.values())
            else "",
        ),
        ("steps", f"{found['steps']:,}" if found.get("steps") else ""),
        ("rates", _rates(rates)),
        ("loss", number(loss) if loss is not None and trains else ""),
        ("metrics", metrics_text(**evaluations[-1]) if evaluations else ""),
        ("time", duration(found["wall_s"]) if found.get("wall_s") else ""),
        ("checkpoint", found.get("checkpoint")),
        ("lost", f"{found['updates_lost']:,} updates" if found.get("updates_lost") else ""),
        ("error", (found.get("error") or "").partition("\n")[0]),
    ]
    return [(label, value) for label, value in rows if value]


def _epoch(found: dict[str, Any]) -> str:
    at, epochs = found["epoch"], found.get("epochs") or 0
    done, total = found["records"]["done"], found["records"]["total"]
    if epochs > 1:
        return f"{min(at + 1, epochs)} of {epochs}"
    # A script may not say how many passes it makes.
    return f"{at + (done < total or not total)}" if at and not epochs else ""


def _rates(rates: dict[str, float | None]) -> str:
    now, mean, steps = (
        rates.get(k) for k in ("records_per_s", "mean_records_per_s", "steps_per_s")
    )
    if not now:
        return ""
    average = f" ({number(mean)} on average)" if mean else ""
    return f"{number(now)} records/s{average}" + (f", {number(steps)} steps/s" if steps else "")
