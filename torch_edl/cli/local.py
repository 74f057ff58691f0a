"""The built-in platform: all processes of a job run on the machine of the command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rich.console import Console

from torch_edl.cli import preflight, submit
from torch_edl.cli.detach import detach
from torch_edl.cli.progress import Display
from torch_edl.interfaces.platform import JobHandle, JobOutcome, Platform, Submission
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.launch.jobs.observers import Observers
from torch_edl.training.contract.backends import backend_of


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
        detached = []
        if config.kind == "train":
            # A process must have no threads when it leaves the terminal.
            detached = [detach(config.name).update] if args.detach else []
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
