"""The platform and the job that a command names, and the built-in platform: the machine of the
command."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from torch_edl.checkpoint.durable import rename
from torch_edl.cli import join, submit
from torch_edl.cli.arguments import preflight
from torch_edl.cli.arguments.options import locators, platform_of
from torch_edl.cli.progress import Display
from torch_edl.cli.terminal import stdout
from torch_edl.config import extensions
from torch_edl.config.job import LOCAL
from torch_edl.interfaces.platform import JobHandle, JobOutcome, Platform, Submission
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import JobFolder, make_jobs_home
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.launch.jobs.observers import Observers
from torch_edl.training.contract.backends import backend_of
from torch_edl.wire import master_pb2 as pb

_INTERRUPTED = 130


def platform(name: str) -> Platform:
    """Return a platform by its name.

    Raises:
        UsageError: no installed package offers the platform.
    """
    if name != LOCAL:
        found: Platform = extensions.platform(name)
        return found
    return LocalPlatform()


def find(args: argparse.Namespace, job: str | None = None) -> JobHandle:
    """Return a job where the options of the command say.

    Args:
        job: name of the job; None for the job that the command names, or the newest job.

    Raises:
        UsageError: the job does not exist.
        EdlError: the cluster does not answer, or rejects a request.
    """
    name = platform_of(args)
    return platform(name).find(job or args.job, locators(args, name))


def find_all(args: argparse.Namespace) -> list[JobHandle]:
    """Return all jobs where the options of the command say, newest first.

    Raises:
        EdlError: the cluster does not answer, or rejects a request.
    """
    name = platform_of(args)
    return platform(name).jobs(locators(args, name))


class LocalPlatform(Platform):
    """Implements :class:`~torch_edl.interfaces.Platform` for the machine of the command."""

    config = None

    def check(self, args: argparse.Namespace, kind: str) -> Submission:
        return Submission(preflight.check(args, kind))

    def show(self, submission: Submission, args: argparse.Namespace) -> int:
        from torch_edl.cli import dry_run  # runs user code

        return dry_run.show(submission.config, servers_named=args.servers is not None)

    def run(
        self, submission: Submission, args: argparse.Namespace, console: Console
    ) -> JobOutcome | None:
        config = submission.config
        if not preflight.is_here(config):
            cluster = config.cluster
            join.join(
                cluster.endpoint,
                slots=cluster.workers_per_node,
                model_file=config.model_file,
                experiment=config.experiment,
            )
        detached = []
        if config.kind == "train":
            # A process must have no threads when it leaves the terminal.
            detached = [detach(config.name)] if args.detach else []
            title = backend_of(args.model_file).title
            text = f"{args.model_file} is a model file of {title}: job {config.name} trains it"
            console.print(text, soft_wrap=True)
        with Observers(config) as observers:
            outcome = submit.run_job(config, Display(console, *detached, observers.update))
            observers.end(outcome.state, outcome.error)
        return outcome

    def find(self, name: str | None, where: Mapping[str, str]) -> JobHandle:
        return LocalJob(folder.find(name).name)

    def jobs(self, where: Mapping[str, str]) -> list[JobHandle]:
        return [LocalJob(job.name) for job in folder.all_jobs()]


def detach(name: str) -> Callable[[pb.GetStatusResponse], None]:
    """Continue in a new process and session. Must be called before a thread is started.

    Returns:
        A function that receives each status; only the detached process returns.

    Raises:
        SystemExit: always, in the process of the terminal. The exit code is 0 after the first
            status of the job, otherwise that of the detached process, whose output is printed.
    """
    job = JobFolder(name)
    # The folder of the job does not exist yet.
    output = make_jobs_home() / f".{name}-{os.getpid()}.log"
    sys.stdout.flush()
    sys.stderr.flush()
    ready, told = os.pipe()
    # Readable for this user only, like the folder of a job.
    with open(output, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        child = os.fork()
        if not child:
            os.close(ready)
            os.setsid()
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            return functools.partial(_tell_terminal, open(told, "wb", buffering=0))
    os.close(told)
    code = None
    try:
        # A read of zero bytes means that the detached process ended.
        if not os.read(ready, 1):
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        code = _INTERRUPTED
    if code is None:
        _say(job, child, output)
    else:
        sys.stderr.write(output.read_text("utf-8", "replace"))
        output.unlink()
    raise SystemExit(code or 0)


def _tell_terminal(pipe: BinaryIO, status: pb.GetStatusResponse) -> None:
    """Tell the process of the terminal, at the first status, that the job runs."""
    if not pipe.closed:
        with pipe, contextlib.suppress(BrokenPipeError):  # the process of the terminal has ended
            pipe.write(b"1")


def _say(job: JobFolder, child: int, output: Path) -> None:
    name = job.name
    lines = [f"job {name} runs without this terminal"]
    if job.is_alive():
        # A script's job may have several clients.
        logs = (job.logs / f"client-{number}.log" for number in itertools.count())
        own = next(log for log in logs if not log.exists())
        rename(output, own)
        output = own
        lines += [
            f"see it: torch-edl status {name}, torch-edl logs {name} --follow",
            f"stop it: torch-edl stop {name}",
        ]
    else:
        lines += [
            "see and stop it on the machine of its master",
            f"take this machine out of it: kill {child}",
        ]
    for line in (*lines, f"what it would have shown here: {output}"):
        stdout().print(line, soft_wrap=True)
