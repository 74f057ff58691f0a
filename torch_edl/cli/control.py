"""``torch-edl attach``, ``scale``, ``stack``, ``stop`` and ``clean``: verbs for existing jobs."""

from __future__ import annotations

import argparse
import time

from torch_edl.cli import job_lookup as which
from torch_edl.cli import summary
from torch_edl.cli.terminal import stderr, stdout
from torch_edl.config import ClusterConfig
from torch_edl.config.job import check_servers
from torch_edl.errors import EdlError, UsageError
from torch_edl.interfaces.platform import JobHandle
from torch_edl.launch.jobs.folder import outdated
from torch_edl.wire import master_pb2 as pb

_POLL_S = 0.1
# Seconds to wait for the stacks of workers, which send a heartbeat each second.
_TELL_S = 5.0
# Seconds to wait for a job to end; the last checkpoint may take most of them.
_PATIENCE_S = 100.0
# Seconds until a message tells that the job is still stopping.
_SAY_S = 2.0


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
        least, most = args.workers
        ClusterConfig(min_workers=least, max_workers=most)  # raises UsageError for 0 and 8:2
        request.min_workers, request.max_workers = least, most
    if args.ps is not None:
        ClusterConfig(servers=args.ps)
        request.servers = args.ps
    job = which.find(args)
    if args.ps is not None:
        check_servers(job.config(), args.ps)
    answer = job.ask(request)
    stdout().print(answer.text, soft_wrap=True)
    return 0


def stack(args: argparse.Namespace) -> int:
    """Print the stacks of the threads of all workers, or of one worker.

    Returns:
        0; 1 if a worker did not answer.

    Raises:
        UsageError: no such job or worker, or the job is over.
    """
    job = which.find(args)
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
    for each in workers:
        head = f"worker-{each.worker_id} (process {each.pid})"
        if each.told:
            stdout().print(f"{head}:\n{each.stacks}", soft_wrap=True, markup=False, highlight=False)
        else:
            text = f"{head}: no answer within {_TELL_S:.0f} s; see its log"
            stderr().print(text, style="yellow", soft_wrap=True)
    return int(not all(each.told for each in workers))


def stop(args: argparse.Namespace) -> int:
    """Ask the master to stop the job, and wait until the job is gone.

    Raises:
        UsageError: no such job, or the job is over.
        EdlError: the job is still there after 100 seconds.
    """
    job = which.find(args)
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
    stdout().print(f"{job.name}: stopped", soft_wrap=True)
    return 0


def clean(args: argparse.Namespace) -> int:
    """Remove the named jobs, or all jobs that are over.

    A job on this machine is removed with its folder, a job on a cluster with its objects.

    Raises:
        UsageError: no such job, or a job that runs; nothing was removed.
    """
    for option, value in (("--days", args.days), ("--keep", args.keep)):
        if value is not None and value < 0:
            raise UsageError(f"{option} {value}: must be 0 or more")
        if value is not None and args.job:
            raise UsageError(f"{args.job[0]} and {option}: name jobs, or choose among all of them")
    for job in (jobs := _removable(args)):
        if not args.dry_run:
            job.remove()
        verb = "would be removed" if args.dry_run else "removed"
        stdout().print(f"{verb}: {job.place}", soft_wrap=True)
    if not jobs:
        stdout().print("nothing to remove")
    return 0


def _removable(args: argparse.Namespace) -> list[JobHandle]:
    """Return the named jobs, or the jobs that are over and need not be kept."""
    if args.job:
        named = [which.find_named(args, name) for name in dict.fromkeys(args.job)]
        for job in named:
            if not job.is_over():
                stop = f"torch-edl stop {job.name} {job.where}".rstrip()
                raise UsageError(f"{job.name}: it runs; end it with {stop}")
        return named
    days = 0 if args.days is None and args.keep is None else args.days
    return outdated(which.find_all(args), days=days, keep=args.keep)


def attach(args: argparse.Namespace) -> int:
    """Show the progress of a running job until the job is over.

    Raises:
        UsageError: there is no such job.
        EdlError: the cluster does not answer, or rejects a request.
    """
    job, console = which.find(args), stdout()
    outcome = job.attach(console)
    return 0 if outcome is None else summary.finish(job.config(), outcome, console)
