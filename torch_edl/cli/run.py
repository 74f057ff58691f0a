"""``torch-edl run``: train the model of a file."""

from __future__ import annotations

import argparse

from torch_edl.cli import preflight
from torch_edl.cli.detach import detach
from torch_edl.cli.job_config import model_file_job
from torch_edl.cli.terminal import stdout


def main(args: argparse.Namespace) -> int:
    """Checks, starts, watches and reports a training job.

    Raises:
        UsageError: the arguments cannot work; nothing was started.
    """
    config = preflight.check(
        model_file_job(args, "train"), model_file=args.model_file, summary=args.summary
    )
    if args.dry_run:
        from torch_edl.cli import dry_run

        return dry_run.show(config, servers_named=args.servers is not None)

    detached = detach(config.name) if args.detach else None
    if isinstance(detached, int):
        return detached

    from torch_edl.cli import submit, summary
    from torch_edl.cli.progress import make_display
    from torch_edl.cli.tensorboard import Scalars

    observers: list[submit.Observer] = [detached] if detached else []
    if config.tensorboard:
        observers.append(Scalars(config.tensorboard))
    if args.summary:
        summary.forget(args.summary)
    console = stdout()
    console.print(f"{args.model_file} is a model file: job {config.name} trains it", soft_wrap=True)
    outcome = submit.run_job(config, make_display(console), observers)
    return summary.finish(config, outcome, console, file=args.summary)
