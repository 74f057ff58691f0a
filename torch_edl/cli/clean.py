"""``torch-edl clean``: remove the folders of jobs that are over."""

from __future__ import annotations

import argparse

from torch_edl.cli.terminal import stdout
from torch_edl.errors import UsageError
from torch_edl.jobs import catalog


def main(args: argparse.Namespace) -> int:
    """Removes the folders of the jobs named, or of all jobs that are over.

    Raises:
        UsageError: no such job, or it runs; nothing was removed.
    """
    for option, value in (("--days", args.days), ("--keep", args.keep)):
        if value is not None and value < 0:
            raise UsageError(f"{option} {value}: must be 0 or more")
        if value is not None and args.job:
            raise UsageError(f"{args.job[0]} and {option}: name jobs, or choose among all of them")
    if args.job:
        jobs = [catalog.find(name) for name in dict.fromkeys(args.job)]
        for job in jobs:
            if not job.is_over():
                raise UsageError(f"{job.name}: it runs; end it with torch-edl stop {job.name}")
    else:
        days = 0 if args.days is None and args.keep is None else args.days
        jobs = catalog.outdated(days=days, keep=args.keep)
    for job in jobs:
        if not args.dry_run:
            catalog.remove(job)
        verb = "would be removed" if args.dry_run else "removed"
        stdout().print(f"{verb}: {job.dir}", soft_wrap=True)
    if not jobs:
        stdout().print("nothing to remove")
    return 0
