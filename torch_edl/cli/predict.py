"""``torch-edl predict``: a trained model's predictions, in the order of the input."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

from torch_edl.cli import preflight, static_check, submit, summary
from torch_edl.cli.job_config import model_file_job
from torch_edl.cli.merge_predictions import SUFFIXES, merge
from torch_edl.cli.progress import make_display
from torch_edl.cli.terminal import stderr
from torch_edl.config import JobConfig
from torch_edl.errors import JobFailedError
from torch_edl.jobs.folder import JobFolder
from torch_edl.signatures import PROCESSORS


def main(args: argparse.Namespace) -> int:
    """Runs a prediction job and merges its parts.

    Raises:
        UsageError: the arguments cannot work; nothing was started.
        JobFailedError: the parts do not have one row for each record.
    """
    config = model_file_job(args, "predict")
    preflight.check_output_file(args.output, SUFFIXES)
    config = preflight.check(config, model_file=args.model_file, summary=args.summary)
    parts = JobFolder(config.name).predictions
    if args.summary:
        summary.forget(args.summary)
    console = stderr()
    keep = dataclasses.replace(config.checkpoint, output=str(parts))
    outcome = submit.run_job(dataclasses.replace(config, checkpoint=keep), make_display(console))
    if outcome.state == "finished":
        outcome = _collect(config, outcome, parts, Path(config.checkpoint.output))
    return summary.finish(config, outcome, console, file=args.summary)


def _collect(
    config: JobConfig, outcome: submit.Outcome, parts: Path, output: Path
) -> submit.Outcome:
    """Merges the parts; a failure of the merge is a failure of the job."""
    assert outcome.status is not None
    # A processor of the user may drop rows, or make several rows of one.
    bound = static_check.check(config.model_file, evaluates=False)
    records = None if bound & set(PROCESSORS) else outcome.status.records_done
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        merge(parts, output, tasks=outcome.status.tasks_done, records=records)
    except JobFailedError as error:
        return dataclasses.replace(outcome, state="failed", error=str(error))
    except OSError as error:
        problem = f"{output}: {error.strerror or error}; the parts are in {parts}"
        return dataclasses.replace(outcome, state="failed", error=problem)
    shutil.rmtree(parts)
    return outcome
