"""Verbs for existing jobs: ``torch-edl list``, ``logs``, ``attach``, ``scale``,
``stack``, ``stop`` and ``clean``."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Sequence

from rich.text import Text

from torch_edl.cli import summary
from torch_edl.cli.arguments.options import platform_of
from torch_edl.cli.platforms import find, find_all
from torch_edl.cli.progress import colour_of, duration
from torch_edl.cli.status import STYLES, records_text
from torch_edl.cli.terminal import stderr, stdout, table
from torch_edl.config.job import LOCAL, check_servers, check_workers
from torch_edl.errors import EdlError, UsageError
from torch_edl.interfaces.platform import JobHandle, LogQuery
from torch_edl.launch.jobs.folder import outdated
from torch_edl.wire import master_pb2 as pb

_EVENTS = "events"
# More lines than a log has.
_MOST_LINES = 2**31
_POLL_S = 0.1
# Seconds to wait for the stacks of workers, which send a heartbeat each second.
_TELL_S = 5.0
# Seconds to wait for a job to end; the last checkpoint may take most of them.
_PATIENCE_S = 100.0
# Seconds until a message tells that the job is still stopping.
_SAY_S = 2.0


def list_jobs(args: argparse.Namespace) -> int:
    """Print a line for each job, the newest first."""
    reports = [{**job.report(), "started": job.started()} for job in find_all(args)]
    if args.json:
        print(json.dumps(reports, indent=1))
        return 0
    if not reports:
        name = platform_of(args)
        where = "on this machine" if name == LOCAL else f"on {name}"
        stdout().print(f"no jobs {where}; torch-edl run starts one")
        return 0
    console = stdout()
    jobs = table("job", "state", "started", "time>", "records>")
    jobs.columns[0].overflow = "fold"
    for found in reports:
        state = Text(found["state"], style=STYLES.get(found["state"], "default"))
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(found["started"]))
        spent = duration(found["wall_s"]) if found.get("wall_s") else "-"
        jobs.add_row(found["job"], state, started, spent, records_text(found))
    console.print(jobs)
    for found in reports:
        if reason := (found.get("error") or "").partition("\n")[0]:
            line = Text(f"  {found['job']} {found['state']}: {reason}")
            line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
    return 0


def logs(args: argparse.Namespace) -> int:
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
    prefix = functools.cache(_prefix)  # a console takes longer than thousands of lines

    def write(name: str, line: str) -> None:
        if args.json:
            text = json.dumps({"log": name, "line": line})
        else:
            text = f"{prefix(name) if several else ''}{line}"
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    tail = args.tail if args.tail is None else min(args.tail, _MOST_LINES)
    query = LogQuery(role=args.role, id=args.id, tail=tail, follow=args.follow)
    find(args).read_logs(query, write)
    return 0


def _prefix(name: str) -> str:
    console = stdout()
    with console.capture() as capture:
        console.print(Text(f"{name} | ", style=colour_of(name)), end="")
    return capture.get()


def scale(args: argparse.Namespace) -> int:
    """Ask the master to change the number of workers or servers.

    The master starts workers, or lets some of them finish their tasks and leave. A new number of
    servers re-shards the model.

    Raises:
        UsageError: an invalid range, no such job, or the master rejected the request.
    """
    if args.workers is None and args.ps is None:
        raise UsageError("scale: nothing to change; add --workers N or --ps N")
    request = pb.ScaleRequest()
    if args.workers is not None:
        check_workers(*args.workers, strategy="")
        request.min_workers, request.max_workers = args.workers
    job = find(args)
    if args.ps is not None:
        check_servers(job.config(), args.ps)
        request.servers = args.ps
    answer = job.ask(request)
    if args.json:
        low, high = args.workers or (None, None)
        asked = {"min_workers": low, "max_workers": high, "servers": args.ps}
        print(json.dumps({"job": job.name, **asked, "text": answer.text}, indent=1))
    else:
        stdout().print(answer.text, soft_wrap=True)
    return 0


def stack(args: argparse.Namespace) -> int:
    """Print the stacks of the threads of all workers, or of one worker; return 1 if one did not
    answer.

    Raises:
        UsageError: no such job or worker, or the job is over.
    """
    job = find(args)
    request, until = pb.GetStacksRequest(number=time.time_ns() // 10**6), time.monotonic() + _TELL_S
    while True:
        found = job.ask(request).workers
        workers = [each for each in found if args.id in (None, each.worker_id)]
        if all(each.told for each in workers) or time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    if not workers:
        absent = "no worker" if args.id is None else f"no worker-{args.id}"
        raise UsageError(f"job {job.name} has {absent} now; see torch-edl status {job.name}")
    told = all(each.told for each in workers)
    if args.json:
        rows = [
            {"id": each.worker_id, "pid": each.pid, "stacks": each.stacks if each.told else None}
            for each in workers
        ]
        print(json.dumps({"job": job.name, "workers": rows}, indent=1))
        return int(not told)
    for each in workers:
        head = f"worker-{each.worker_id} (process {each.pid})"
        if each.told:
            stdout().print(f"{head}:\n{each.stacks}", soft_wrap=True, markup=False, highlight=False)
        else:
            text = f"{head}: no answer within {_TELL_S:.0f} s; see its log"
            stderr().print(text, style="yellow", soft_wrap=True)
    return int(not told)


def stop(args: argparse.Namespace) -> int:
    """Ask the master to stop the job, and wait until the job is gone.

    Raises:
        UsageError: no such job, or the job is over.
        EdlError: the job is still there after 100 seconds.
    """
    job = find(args)
    job.stop(pb.StopRequest(reason="torch-edl stop", at_once=args.now))
    began, told = time.monotonic(), False
    while not job.is_gone():
        waited_s = time.monotonic() - began
        if waited_s > _SAY_S and not told:
            told = True
            text = f"{job.name}: waiting for its processes to end; --now ends them at once"
            stderr().print(text, style="yellow", soft_wrap=True)
        if waited_s > _PATIENCE_S:
            raise EdlError(f"{job.name}: asked to stop, but still there after {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
    if args.json:
        print(json.dumps({"job": job.name, "state": job.report()["state"]}, indent=1))
    else:
        stdout().print(f"{job.name}: stopped", soft_wrap=True)
    return 0


def clean(args: argparse.Namespace) -> int:
    """Remove the named jobs, or those that are over and that the options or the user choose.

    A job on this machine is removed with its folder, a job on a cluster with its objects.

    Raises:
        UsageError: no such job, a job that runs, or nothing was named and there is no terminal for
            a question; nothing was removed.
    """
    for option, value in (("--days", args.days), ("--keep", args.keep)):
        if value is not None and value < 0:
            raise UsageError(f"{option} {value}: must be 0 or more")
        if value is not None and args.job:
            raise UsageError(f"{args.job[0]} and {option}: name jobs, or choose among all of them")
    jobs = _removable(args)
    if jobs and not _confirmed(args, jobs):
        return 1
    for job in jobs:
        if not args.dry_run:
            job.remove()
        verb = "would be removed" if args.dry_run else "removed"
        if not args.json:
            stdout().print(f"{verb}: {job.place}", soft_wrap=True)
    if args.json:
        rows = [{"job": job.name, "place": job.place} for job in jobs]
        print(json.dumps({"dry_run": args.dry_run, "removed": rows}, indent=1))
    elif not jobs:
        stdout().print("nothing to remove")
    return 0


def _confirmed(args: argparse.Namespace, jobs: Sequence[JobHandle]) -> bool:
    """Return whether the jobs may be removed; ask if the command neither names nor chooses them."""
    if args.job or args.dry_run or (args.days, args.keep) != (None, None):
        return True
    if args.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "clean: no job is named, and there is no terminal for a question; name jobs, or add "
            "--days N or --keep N (--days 0 removes all jobs that have ended)"
        )
    what = f"{len(jobs):,} jobs that have ended" if len(jobs) > 1 else jobs[0].name
    try:
        answer = input(f"remove the logs, events and status of {what}? [y/N] ")
    except EOFError:  # Ctrl-D
        return False
    return answer.strip().lower() in ("y", "yes")


def _removable(args: argparse.Namespace) -> list[JobHandle]:
    if args.job:
        named = [find(args, name) for name in dict.fromkeys(args.job)]
        for job in named:
            if not job.is_over():
                stop = f"torch-edl stop {job.name} {job.where}".rstrip()
                raise UsageError(f"{job.name}: it runs; end it with {stop}")
        return named
    days = 0 if args.days is None and args.keep is None else args.days
    return outdated(find_all(args), days=days, keep=args.keep)


def attach(args: argparse.Namespace) -> int:
    """Show the progress of a running job until the job is over.

    Raises:
        UsageError: there is no such job.
        EdlError: the cluster does not answer, or rejects a request.
    """
    job, console = find(args), stdout()
    outcome = job.attach(console)
    return 0 if outcome is None else summary.finish(job.config(), outcome, console)
