"""``torch-edl run``, ``continue``, ``evaluate``, ``predict`` and ``export``: a model file and its
model."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from torch_edl.cli import preflight, submit, summary, user_file
from torch_edl.cli.detach import detach
from torch_edl.cli.progress import Display, Observer
from torch_edl.cli.tensorboard import Scalars
from torch_edl.cli.terminal import stderr, stdout, table
from torch_edl.config import JobConfig
from torch_edl.errors import JobFailedError
from torch_edl.frameworks import framework_of
from torch_edl.jobs import catalog
from torch_edl.jobs.folder import JobFolder
from torch_edl.signatures import PROCESSORS

_EXPORTS = (".pt", ".pth", ".safetensors")


def run(args: argparse.Namespace) -> int:
    """Trains the model of a file.

    Raises:
        UsageError: the arguments cannot work; nothing was started. So for all verbs here.
    """
    if args.platform == "kubernetes":
        from torch_edl.cli import cluster

        return cluster.run(args)
    config = preflight.check(args, "train")
    if args.dry_run:
        from torch_edl.cli import dry_run

        return dry_run.show(config, servers_named=args.servers is not None)
    observers: list[Observer] = [detach(config.name)] if args.detach else []
    observers += _scalars(config)
    console = stdout()
    title = framework_of(args.model_file).title
    text = f"{args.model_file} is a model file of {title}: job {config.name} trains it"
    console.print(text, soft_wrap=True)
    outcome = _run_job(config, args, console, observers)
    return summary.finish(config, outcome, console, file=args.summary)


def go_on(args: argparse.Namespace) -> int:
    """Continues the training of a job that lost all its processes, the client among them.

    Raises:
        UsageError: no such job, it runs, or it has ended.
    """
    job = catalog.find(args.job)
    config, console = job.config(), stdout()
    summary.forget(args.summary)
    outcome = submit.continue_job(job, Display(console, _scalars(config)))
    return summary.finish(config, outcome, console, file=args.summary)


def evaluate(args: argparse.Namespace) -> int:
    """Computes the metrics of a trained model, and prints them on stdout; all else on stderr.

    Raises:
        JobFailedError: there are no metrics.
    """
    config = preflight.check(args, "evaluate")
    console = stderr()
    outcome = _run_job(config, args, console)
    code = summary.finish(config, outcome, console, file=args.summary)
    if code:
        return code
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
    """Writes the predictions of a trained model, in the order of the input.

    Raises:
        JobFailedError: the parts do not have one row for each record.
    """
    from torch_edl.cli.merge_predictions import SUFFIXES

    preflight.check_output_file(args.output, SUFFIXES)
    config = preflight.check(args, "predict")
    parts = JobFolder(config.name).predictions
    console = stderr()
    keep = replace(config.checkpoint, output=str(parts))
    outcome = _run_job(replace(config, checkpoint=keep), args, console)
    if outcome.state == "finished":
        outcome = _merge(config, outcome, parts)
    return summary.finish(config, outcome, console, file=args.summary)


def export(args: argparse.Namespace) -> int:
    """Writes a trained model as one plain state_dict, with all rows of tables of a fixed size.

    Raises:
        CheckpointError: the model is damaged.
        EdlError: the file cannot be written.
    """
    preflight.check_output_file(args.file, _EXPORTS, option="FILE")
    directory = preflight.find_model(args.source, option="SOURCE")
    # Imported after all checks: these modules import torch.
    from torch_edl.engine.replica import read_model
    from torch_edl.trainer import weights

    state = read_model(Path(directory))
    weights.write(state, Path(args.file).expanduser())
    elements = sum(tensor.numel() for tensor in state.values())
    text = f"{args.file}: {len(state)} tensors, {elements:,} elements"
    stdout().print(text, soft_wrap=True)
    return 0


def _scalars(config: JobConfig) -> list[Observer]:
    return [Scalars(config.tensorboard)] if config.tensorboard else []


def _run_job(
    config: JobConfig,
    args: argparse.Namespace,
    console: Console,
    observers: Sequence[Observer] = (),
) -> submit.Outcome:
    summary.forget(args.summary)
    return submit.run_job(config, Display(console, observers))


def _merge(config: JobConfig, outcome: submit.Outcome, parts: Path) -> submit.Outcome:
    """Merges the parts of the predictions; a failure of the merge is a failure of the job."""
    from torch_edl.cli.merge_predictions import merge

    assert outcome.status is not None
    output = Path(config.checkpoint.output)
    # A processor of the user may drop rows, or make several rows of one.
    bound = user_file.check_model_file(config.model_file, evaluates=False)
    records = None if bound & set(PROCESSORS) else outcome.status.records_done
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        merge(parts, output, tasks=outcome.status.tasks_done, records=records)
    except JobFailedError as error:
        return replace(outcome, state="failed", error=str(error))
    except OSError as error:
        problem = f"{output}: {error.strerror or error}; the parts are in {parts}"
        return replace(outcome, state="failed", error=problem)
    shutil.rmtree(parts)
    return outcome
