"""``torch-edl status``: the status of a job from its master, or the last one in its folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_edl.cli.progress import TRAINS, duration, number
from torch_edl.cli.terminal import stdout
from torch_edl.jobs import catalog
from torch_edl.jobs.status import report

if TYPE_CHECKING:
    from rich.table import Table

STATE_STYLES = {"running": "green", "finished": "green", "failed": "red", "dead": "red"}


def main(args: argparse.Namespace) -> int:
    """Prints the job that is named, or the newest.

    Raises:
        UsageError: there is no such job.
    """
    job = catalog.find(args.job)
    found = report(job)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found, job.logs)
    return 0


def _print(found: dict[str, Any], logs: Path) -> None:
    from rich.text import Text

    console = stdout()
    state = found["state"]
    head = Text(found["job"], style="bold")
    head.append(f"  {state}", style=STATE_STYLES.get(state, "default"))
    console.print(head, soft_wrap=True)
    for label, value in (*_rows(found), ("logs", str(logs))):
        console.print(f"  {label:<11} {value}", soft_wrap=True)
    if found["processes"]:
        console.print(_processes(found["processes"], logs))


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if found["strategy"]:
        reason = f": {found['reason']}" if found.get("reason") else ""
        rows.append(("strategy", f"{found['strategy']}{reason}"))
    rows.append(("records", records_of(found)))
    if (found.get("epochs") or 0) > 1:
        rows.append(("epoch", f"{min(found['epoch'] + 1, found['epochs'])} of {found['epochs']}"))
    elif found.get("epochs") is None and found["epoch"]:
        done, total = found["records"]["done"], found["records"]["total"]
        rows.append(("epoch", f"{found['epoch'] + (done < total or not total)}"))
    tasks = found["tasks"]
    if any(tasks.values()):
        rows.append(
            (
                "tasks",
                f"{tasks['todo']:,} to do, {tasks['doing']:,} at work, {tasks['done']:,} done",
            )
        )
    if found.get("steps"):
        rows.append(("steps", f"{found['steps']:,}"))
    rates = found["rates"]
    if rates.get("records_per_s"):
        mean = rates.get("mean_records_per_s")
        now = f"{number(rates['records_per_s'])} records/s"
        now += f" ({number(mean)} on average)" if mean else ""
        steps = f", {number(rates['steps_per_s'])} steps/s" if rates.get("steps_per_s") else ""
        rows.append(("rates", now + steps))
    if found.get("loss") is not None and found.get("kind") in TRAINS:
        rows.append(("loss", number(found["loss"])))
    if found.get("evaluations"):
        last = found["evaluations"][-1]
        shown = (f"{k} {'nan' if v is None else number(v)}" for k, v in last["metrics"].items())
        rows.append(("metrics", f"{', '.join(shown)} (step {last['steps']:,})"))
    if found.get("wall_s"):
        rows.append(("time", duration(found["wall_s"])))
    if found.get("checkpoint"):
        rows.append(("checkpoint", found["checkpoint"]))
    if found.get("error"):
        rows.append(("error", found["error"].splitlines()[0]))
    return rows


def records_of(found: dict[str, Any]) -> str:
    """``41 of 60``; a dash where it is not known how many there are."""
    done, total = found["records"]["done"], found["records"]["total"]
    return f"{done:,} of {total:,}" if total else "-"


def _processes(processes: list[dict[str, Any]], logs: Path) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("process", box=box.SIMPLE_HEAD)
    table.add_column("pid", justify="right")
    table.add_column("state")
    table.add_column("address")
    table.add_column("log", overflow="fold")
    for p in processes:
        ended = f" ({p['exit']})" if p.get("exit") else ""
        log = str(p.get("log", "")).removeprefix(f"{logs}/")
        name = f"{p['role']}-{p['id']}"
        table.add_row(name, str(p["pid"]), p["state"] + ended, p["address"], log)
    return table
