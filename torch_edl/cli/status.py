"""``torch-edl status``: shows a job once, or again and again until the job is over."""

from __future__ import annotations

import argparse
import json
import signal
import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from torch_edl.cli.platforms import find
from torch_edl.cli.progress import best_text, duration, epoch_text, metrics_text, number
from torch_edl.cli.terminal import stdout, table
from torch_edl.config.option import TRAINING
from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import JobHandle
from torch_edl.launch.jobs.folder import ENDED
from torch_edl.processes.signals import StopSignals

STYLES = {"running": "green", "finished": "green", "failed": "red", "dead": "red"}
"""Colours by state of a job; other states have none."""
_EXITED = "exited"
# Number of ended processes that the list shows for each role.
_LAST_ENDED = 3
# Seconds between two frames, and the longest time until a signal ends the view.
_WATCH_S, _POLL_S = 1.0, 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def show(args: argparse.Namespace) -> int:
    """Print the status that the master of a job reports, or the last one in the job's folder.

    Raises:
        UsageError: there is no such job, or no terminal to watch it on.
    """
    if args.watch and args.json:
        raise UsageError("--watch and --json: a watched status is for a terminal; leave one out")
    if args.watch and not stdout().is_terminal:
        raise UsageError("--watch: stdout is no terminal; leave it out, or add --json instead")
    job = find(args)
    if args.watch:
        return _watch(job, everything=args.all)
    found = job.report()
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        _print(_parts(job, found, everything=args.all))
    return 0


def _watch(job: JobHandle, *, everything: bool) -> int:
    """Redraw the status until the job is over or a signal comes; then print the last one.

    Returns:
        0 at the end of the job and after Ctrl-C; 128 + N after another signal N.
    """
    footer = Text("Ctrl-C ends this view, and leaves the job alone", style="dim")
    parts: list[Text | Table] = []
    # The alternate screen: the lines above the command stay as they are, at any size of the window.
    with (
        StopSignals(_SIGNALS) as signals,
        Live(console=stdout(), screen=True, auto_refresh=False) as live,
    ):
        while not signals.count:
            found = job.report()
            parts = _parts(job, found, everything=everything)
            if found["state"] in (*ENDED, "dead"):
                break
            live.update(Group(*parts, footer), refresh=True)
            again = time.monotonic() + _WATCH_S
            while not signals.count and time.monotonic() < again:
                time.sleep(_POLL_S)
    _print(parts)
    return 0 if signals.first == signal.SIGINT else signals.exit_code


def _print(parts: list[Text | Table]) -> None:
    console = stdout()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(job: JobHandle, found: dict[str, Any], *, everything: bool) -> list[Text | Table]:
    """Return the lines and the table of a status; ``everything`` lists all ended processes."""
    head = Text(found["job"], style="bold")
    head.append(f"  {found['state']}", style=STYLES.get(found["state"], "default"))
    rows = (*_rows(found), ("logs", job.logs))
    parts: list[Text | Table] = [head, *(Text(f"  {name:<11} {value}") for name, value in rows)]
    if found["state"] == "dead" and found.get("kind") == "train":
        parts.append(Text(f"  torch-edl continue {job.name} continues it"))
    if found["processes"]:
        machines = any(p.get("node") for p in found["processes"])
        columns = ["process", "pid>", "state", *["machine"] * machines, "address", "log"]
        processes = table(*columns)
        processes.columns[-1].overflow = "fold"
        listed = found["processes"] if everything else _worth_a_row(found["processes"])
        for p in listed:
            ended = f" ({p['exit']})" if p.get("exit") else ""
            log = str(p.get("log", "")).removeprefix(f"{job.logs}/")
            name = f"{p['role']}-{p['id']}"
            where = [str(p.get("node", ""))] if machines else []
            state = p["state"] + ended
            processes.add_row(name, str(p["pid"]), state, *where, p["address"], log)
        parts.append(processes)
        if hidden := len(found["processes"]) - len(listed):
            parts.append(Text(f"  {hidden:,} more ended earlier; --all lists them"))
    return parts


def _worth_a_row(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the processes that run, and the last ones of each role that ended."""
    ended: dict[str, list[int]] = {}
    for place, process in enumerate(processes):
        if process["state"] == _EXITED:
            ended.setdefault(process["role"], []).append(place)
    older = {place for places in ended.values() for place in places[:-_LAST_ENDED]}
    return [process for place, process in enumerate(processes) if place not in older]


def records_text(found: dict[str, Any]) -> str:
    """Return ``41 of 60``; a dash if the number of records is unknown."""
    done, total = found["records"]["done"], found["records"]["total"]
    return f"{done:,} of {total:,}" if total else "-"


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    loss, epochs = found.get("loss"), found.get("epochs") or 0
    trains = found.get("kind") in TRAINING
    reason, evaluations = found.get("reason"), found.get("evaluations")
    rows = [
        ("strategy", found["strategy"] + (f": {reason}" if reason else "")),
        ("records", records_text(found)),
        (
            "epoch",
            epoch_text(
                found["epoch"],
                epochs,
                done=found["records"]["done"],
                total=found["records"]["total"],
                of=" of ",
            ),
        ),
        ("tasks", _tasks(found) if any(found["tasks"].values()) else ""),
        ("steps", f"{found['steps']:,}" if found.get("steps") and trains else ""),
        ("rates", _rates(found["rates"])),
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
    doing = "" if found["strategy"] == "allreduce" else f"{tasks['doing']:,} leased, "
    if oldest_s := max((p.get("lease_s", 0.0) for p in found["processes"]), default=0.0):
        age = f"{oldest_s:.0f} s" if oldest_s < 60 else duration(oldest_s)
        doing = f"{tasks['doing']:,} leased to workers (the oldest {age} ago), "
    return f"{tasks['todo']:,} to do, {doing}{tasks['done']:,} done"


def _rates(rates: dict[str, float | None]) -> str:
    now, mean, steps = (
        rates.get(k) for k in ("records_per_s", "mean_records_per_s", "steps_per_s")
    )
    if not now:
        return ""
    average = f" ({number(mean)} on average)" if mean else ""
    return f"{number(now)} records/s{average}" + (f", {number(steps)} steps/s" if steps else "")
