"""``torch-edl list``: the jobs of this machine."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from torch_edl.cli.status import STATE_STYLES, records_of
from torch_edl.cli.terminal import stdout
from torch_edl.jobs import catalog
from torch_edl.jobs.status import report


def main(args: argparse.Namespace) -> int:
    """Prints a line for each job, the newest first."""
    reports = [{**report(job), "started": job.started()} for job in catalog.all_jobs()]
    if args.json:
        print(json.dumps(reports, indent=1))
    elif reports:
        _print(reports)
    else:
        stdout().print("no jobs on this machine; torch-edl run starts one")
    return 0


def _print(reports: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("job", "state", "started", "strategy", box=box.SIMPLE_HEAD)
    table.add_column("records", justify="right")
    for found in reports:
        state = Text(found["state"], style=STATE_STYLES.get(found["state"], "default"))
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(found["started"]))
        table.add_row(found["job"], state, started, found["strategy"], records_of(found))
    stdout().print(table)
