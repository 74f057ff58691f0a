"""``torch-edl logs``: the events of a job and the output of its processes."""

from __future__ import annotations

import argparse
import sys

from rich.text import Text

from torch_edl.cli import job_lookup as which
from torch_edl.cli.progress import colour_of
from torch_edl.cli.terminal import stdout
from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import LogQuery

_EVENTS = "events"


def main(args: argparse.Namespace) -> int:
    """Print the logs of a job; with ``--follow`` also new lines until the job is over.

    Raises:
        UsageError: no such job or log, or a number of lines below 0.
        EdlError: the cluster of the job does not answer, or rejects a request.
    """
    if args.id is not None and args.role in ("", _EVENTS):
        raise UsageError(f"--id {args.id}: of which processes? add --role worker")
    if args.tail is not None and args.tail < 0:
        raise UsageError(f"--tail {args.tail}: must be 0 or more")
    several = args.id is None and args.role != _EVENTS

    def write(name: str, line: str) -> None:
        sys.stdout.write(f"{_prefix(name) if several else ''}{line}\n")
        sys.stdout.flush()

    query = LogQuery(role=args.role, id=args.id, tail=args.tail, follow=args.follow)
    which.find(args).read_logs(query, write)
    return 0


def _prefix(name: str) -> str:
    console = stdout()
    with console.capture() as capture:
        console.print(Text(f"{name} | ", style=colour_of(name)), end="")
    return capture.get()
