"""``torch-edl run``, ``continue``, ``evaluate``, ``predict`` and ``export`` of a model file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from torch_edl.checkpoint import layout
from torch_edl.cli import submit, summary
from torch_edl.cli.arguments import preflight, user_file
from torch_edl.cli.platforms import platform
from torch_edl.cli.progress import Display
from torch_edl.cli.terminal import stderr, stdout, table
from torch_edl.config import JobConfig
from torch_edl.config.job import LOCAL
from torch_edl.errors import CheckpointError, JobFailedError, UsageError
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.observers import Observers
from torch_edl.training.contract.backends import TORCH, backend_of, importing, named

_ATTEMPTS = 5  # checkpoints to try while a running job removes them


def run(args: argparse.Namespace, kind: str = "train") -> int:
    """Train the model of a file, or run a script on another platform than this machine.

    Raises:
        UsageError: the arguments cannot work; nothing was started. The same holds for all verbs
            here.
    """
    if args.dry_run:
        place = platform(args.platform or LOCAL)
        return place.show(place.check(args, kind), args)
    _, outcome = _run_job(args, kind, stdout())
    return outcome.exit_code if outcome else 0


def go_on(args: argparse.Namespace) -> int:
    """Continue a training whose master and client are gone, or that failed and left journals.

    Raises:
        UsageError: no such job, or a job that is running or has ended in another way.
    """
    job = folder.find(args.job)
    config, console = job.config(), stdout()
    summary.forget(args.summary)
    with Observers(config) as observers:
        outcome = submit.continue_job(job, Display(console, observers.update))
        observers.end(outcome.state, outcome.error)
    return summary.finish(config, outcome, console, file=args.summary)


def evaluate(args: argparse.Namespace) -> int:
    """Compute the metrics of a trained model, and print them on stdout; all else goes to stderr.

    Raises:
        JobFailedError: the job ended without metrics.
    """
    config, outcome = _run_job(args, "evaluate", stderr())
    if outcome is None or outcome.exit_code:
        return outcome.exit_code if outcome else 0
    report = summary.build(config, outcome)
    if not report["evaluations"]:
        raise JobFailedError(f"{config.name}: the evaluation ended without metrics")
    if args.json:
        shown = {k: report[k] for k in ("job", "records", "metrics")}
        print(json.dumps({**shown, "model": config.checkpoint.load}, indent=1))
        return 0
    metrics = table("metric", "value>")
    for name, value in report["metrics"].items():
        metrics.add_row(name, "nan" if value is None else f"{value:.6g}")
    stdout().print(metrics)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Write the predictions of a trained model, in the order of the input."""
    _, outcome = _run_job(args, "predict", stderr())
    return outcome.exit_code if outcome else 0


def export(args: argparse.Namespace) -> int:
    """Write a trained model as one file in the format of its framework.

    Tables of a fixed size are written with all their rows.

    Raises:
        CheckpointError: the model is damaged.
        EdlError: the file cannot be written.
    """
    if args.model_file:
        user_file.check_model_file(args.model_file)
    backend = backend_of(args.model_file) if args.model_file else named(TORCH)
    if Path(args.file).suffix not in backend.exports and not args.model_file:
        raise UsageError(
            f"FILE {args.file}: for a model of {backend.title}, the name must end in "
            f"{' or '.join(backend.exports)}; one of another framework needs --model-file MODEL.py"
        )
    preflight.check_output_file(args.file, backend.exports, option="FILE")
    file = Path(args.file).expanduser()
    with importing(backend):
        directory, text = _of_newest(
            lambda: preflight.find_model(args.source, option="SOURCE"),
            lambda folder: backend.export(folder, args.model_file, file),
        )
    if args.json:
        print(json.dumps({"model": directory, "file": args.file, "text": text}, indent=1))
    else:
        stdout().print(text, soft_wrap=True)
    return 0


def _of_newest(find: Callable[[], str], export: Callable[[Path], str]) -> tuple[str, str]:
    """Return the folder of a model and the value of ``export`` for it. If a running job prunes the
    checkpoint meanwhile, the next newest one is exported.

    Raises:
        CheckpointError: the model is damaged, or the job prunes faster than ``export`` reads.
    """
    for _ in range(_ATTEMPTS):
        folder = find()
        try:
            return folder, export(Path(folder))
        except (CheckpointError, OSError) as error:
            if layout.is_checkpoint(Path(folder)) or layout.is_export(Path(folder)):
                raise
            pruned = error
    raise CheckpointError(
        f"{folder}: the job removed {_ATTEMPTS} checkpoints, one after the other, while they were "
        "read; keep more of them (--keep-checkpoints), or stop the job first"
    ) from pruned


def _run_job(
    args: argparse.Namespace, kind: str, console: Console
) -> tuple[JobConfig, JobOutcome | None]:
    """Run a job and print how it ended; the outcome is None if the job continues without this
    command."""
    place = platform(args.platform or LOCAL)
    submission = place.check(args, kind)
    summary.forget(args.summary)
    outcome = place.run(submission, args, console)
    if outcome is not None:
        summary.finish(submission.config, outcome, console, file=args.summary)
    return submission.config, outcome
