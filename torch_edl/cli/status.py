"""``torch-edl status`` shows one job with its processes; ``torch-edl list`` shows all jobs."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.text import Text

from torch_edl.cli import job_lookup as which
from torch_edl.cli.progress import TRAINS, best_text, duration, metrics_text, number
from torch_edl.cli.terminal import stdout, table
from torch_edl.config.job import LOCAL

_EXITED = "exited"
# Number of ended processes that the list shows for each role.
_LAST_ENDED = 3
_STYLES = {"running": "green", "finished": "green", "failed": "red", "dead": "red"}


def show_job(args: argparse.Namespace) -> int:
    """Print the status that the master of a job reports, or the last one in the job's folder.

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
        listed = found["processes"] if args.all else _worth_a_row(found["processes"])
        for p in listed:
            ended = f" ({p['exit']})" if p.get("exit") else ""
            log = str(p.get("log", "")).removeprefix(f"{job.logs}/")
            name = f"{p['role']}-{p['id']}"
            processes.add_row(name, str(p["pid"]), p["state"] + ended, p["address"], log)
        console.print(processes)
        if hidden := len(found["processes"]) - len(listed):
            console.print(f"  {hidden:,} more ended earlier; --all lists them", soft_wrap=True)
    return 0


def _worth_a_row(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the processes that run, and the last ones of each role that ended."""
    ended: dict[str, list[int]] = {}
    for place, process in enumerate(processes):
        if process["state"] == _EXITED:
            ended.setdefault(process["role"], []).append(place)
    older = {place for places in ended.values() for place in places[:-_LAST_ENDED]}
    return [process for place, process in enumerate(processes) if place not in older]


def list_jobs(args: argparse.Namespace) -> int:
    """Print a line for each job, the newest first."""
    reports = [{**job.report(), "started": job.started()} for job in which.find_all(args)]
    if args.json:
        print(json.dumps(reports, indent=1))
        return 0
    if not reports:
        name = which.name_of(args)
        where = "on this machine" if name == LOCAL else f"on {name}"
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
    """Return ``41 of 60``; a dash if the number of records is unknown."""
    done, total = found["records"]["done"], found["records"]["total"]
    return f"{done:,} of {total:,}" if total else "-"


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values that describe a job."""
    tasks, rates, loss = found["tasks"], found["rates"], found.get("loss")
    trains = found.get("kind") in TRAINS
    reason, evaluations = found.get("reason"), found.get("evaluations")
    rows = [
        ("strategy", found["strategy"] + (f": {reason}" if reason else "")),
        ("records", _records(found)),
        ("epoch", _epoch(found)),
        (
            "tasks",
            _tasks(found) if any(tasks.values()) else "",
        ),
        ("steps", f"{found['steps']:,}" if found.get("steps") and trains else ""),
        ("rates", _rates(rates)),
        ("loss", number(loss) if loss is not None and trains else ""),
        ("metrics", metrics_text(**evaluations[-1]) if evaluations else ""),
        ("best", best_text(found["best"]) if found.get("best") else ""),
        ("time", duration(found["wall_s"]) if found.get("wall_s") else ""),
        ("checkpoint", found.get("checkpoint")),
        ("lost", f"{found['updates_lost']:,} updates" if found.get("updates_lost") else ""),
        (
            "stopped by" if found["state"] == "stopped" else "error",
            (found.get("error") or "").partition("\n")[0],
        ),
    ]
    return [(label, value) for label, value in rows if value]


def _tasks(found: dict[str, Any]) -> str:
    tasks = found["tasks"]
    # With allreduce, all workers share every task, so no task is assigned to one worker.
    doing = "" if found["strategy"] == "allreduce" else f"{tasks['doing']:,} at work, "
    return f"{tasks['todo']:,} to do, {doing}{tasks['done']:,} done"


def _epoch(found: dict[str, Any]) -> str:
    at, epochs = found["epoch"], found.get("epochs") or 0
    done, total = found["records"]["done"], found["records"]["total"]
    if epochs > 1:
        return f"{min(at + 1, epochs)} of {epochs}"
    # A script may not declare its number of epochs.
    return f"{at + (done < total or not total)}" if at and not epochs else ""


def _rates(rates: dict[str, float | None]) -> str:
    now, mean, steps = (
        rates.get(k) for k in ("records_per_s", "mean_records_per_s", "steps_per_s")
    )
    if not now:
        return ""
    average = f" ({number(mean)} on average)" if mean else ""
    return f"{number(now)} records/s{average}" + (f", {number(steps)} steps/s" if steps else "")
