"""``torch-edl evaluate``: the metrics of a trained model."""

from __future__ import annotations

import argparse
import json

from torch_edl.cli import preflight, submit, summary
from torch_edl.cli.job_config import model_file_job
from torch_edl.cli.progress import make_display
from torch_edl.cli.terminal import stderr, stdout
from torch_edl.errors import JobFailedError


def main(args: argparse.Namespace) -> int:
    """Runs an evaluation job; the metrics are printed on stdout, all else on stderr.

    Raises:
        UsageError: the arguments cannot work; nothing was started.
    """
    config = model_file_job(args, "evaluate")
    config = preflight.check(config, model_file=args.model_file, summary=args.summary)
    if args.summary:
        summary.forget(args.summary)
    console = stderr()
    outcome = submit.run_job(config, make_display(console))
    code = summary.finish(config, outcome, console, file=args.summary)
    if code:
        return code
    report = summary.build(config, outcome)
    if not report["evaluations"]:
        raise JobFailedError(f"{config.name}: the evaluation ended without metrics")
    if args.json:
        shown = {k: report[k] for k in ("job", "records", "metrics")}
        print(json.dumps({**shown, "model": config.checkpoint.load}, indent=1))
    else:
        _print_table(report["metrics"])
    return 0


def _print_table(metrics: dict[str, float | None]) -> None:
    from rich import box
    from rich.table import Table

    table = Table("metric", box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, "nan" if value is None else f"{value:.6g}")
    stdout().print(table)
