"""The report of a job that has ended: JSON for programs, a few lines for the terminal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from torch_edl.checkpoint.durable import write_text
from torch_edl.cli.progress import best_text, duration, number
from torch_edl.cli.terminal import complain
from torch_edl.config import JobConfig
from torch_edl.config.option import TRAINING
from torch_edl.events import counted
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs.status import as_dict
from torch_edl.wire import master_pb2 as pb

_DONE = {
    "train": "trained on",
    "script": "trained on",
    "evaluate": "evaluated on",
    "predict": "predicted for",
}


def build(config: JobConfig, outcome: JobOutcome) -> dict[str, Any]:
    """Return the report for ``--summary``; it has the same keys for every outcome."""
    seen = as_dict(outcome.status or pb.GetStatusResponse())
    records, wall_s, evaluations = seen["records"]["done"], seen["wall_s"], seen["evaluations"]
    rate = seen["rates"].get("mean_records_per_s")
    master = {"role": "master", "id": 0, "pid": outcome.master_pid, "exit": outcome.master_exit}
    processes = [{k: p[k] for k in master} for p in seen["processes"] if p["role"] != "master"]
    return {
        "job": config.name,
        "kind": config.kind,
        "strategy": seen["strategy"],
        "reason": seen["reason"],
        "state": outcome.state,
        "records": records,
        "tasks": seen["tasks"]["done"],
        "steps": seen["steps"],
        "wall_s": wall_s,
        "samples_per_s": rate or (round(records / wall_s, 3) if wall_s else 0.0),
        "loss": seen["loss"],
        "metrics": evaluations[-1]["metrics"] if evaluations else {},
        "evaluations": evaluations,
        "best": seen["best"],
        "processes": [master, *processes],
        "damaged": seen["damaged"],
        "nan_steps": seen["nan_steps"],
        "updates_lost": seen["updates_lost"],
        "records_early": seen["records_early"],
        "error": outcome.error,
        "checkpoint": seen["checkpoint"],
        "output": config.checkpoint.output if outcome.state == "finished" else "",
    }


def forget(path: str) -> None:
    """Remove the summary of an earlier job, which could be mistaken for that of the new job."""
    if path:
        Path(path).expanduser().unlink(missing_ok=True)


def finish(config: JobConfig, outcome: JobOutcome, console: Console, *, file: str = "") -> int:
    """Print how the job ended, and return the exit code.

    The summary is written to ``file`` unless that is empty.

    Raises:
        OSError: the summary could not be written; the end of the job was printed.
    """
    try:
        if file:
            path = Path(file).expanduser().absolute()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(build(config, outcome), indent=1) + "\n")
    finally:
        _print(config, outcome, console)
    return outcome.exit_code


def _print(config: JobConfig, outcome: JobOutcome, console: Console) -> None:
    """Print how the job ended; a failure goes to stderr."""
    status = outcome.status
    kept = status.checkpoint if status is not None else ""
    advice = f"newest checkpoint: {kept} (continue with --resume)" if kept else ""
    if outcome.state == "finished":
        for line in closing_lines(build(config, outcome)):
            console.print(line, soft_wrap=True)
    elif outcome.state == "stopped":
        when = "before the start"
        if status is not None and status.records.total:
            when = f"after {status.records.done:,} of {status.records.total:,} records"
        text = f"{config.name}: stopped {when}" + (f"; {advice}" if advice else "")
        console.print(text, style="yellow", soft_wrap=True)
    else:
        logs = "" if outcome.usage_error else f"\nlogs: {outcome.logs}"
        complain(outcome.error.rstrip() + logs, details=outcome.traceback)
        journalled = config.durability.mode == "journal" and config.platform == "local"
        if journalled and config.kind == "train" and status is not None and status.records.done:
            advice = f"torch-edl continue {config.name} continues from the journals"
        rejected = config.checkpoint.resume and outcome.usage_error  # --resume was the error
        if advice and not rejected:
            console.print(advice, soft_wrap=True)


def closing_lines(summary: dict[str, Any]) -> list[str]:
    """Return the last lines of a job that finished."""
    trains = summary["kind"] in TRAINING
    early = ""
    if summary["records_early"]:
        early = f"; ended early: {counted(summary['records_early'], 'record')} not trained"
    if summary["kind"] == "script" and not summary["steps"]:
        return [f"{summary['job']}: finished{early}"]
    steps = f" in {counted(summary['steps'], 'step')}" if trains else ""
    first = (
        f"{summary['job']}: {_DONE[summary['kind']]} {counted(summary['records'], 'record')}"
        f"{steps}, {duration(summary['wall_s'])}, {number(summary['samples_per_s'])} records/s"
        f"{early}"
    )
    lines = [first]
    if summary["loss"] is not None and trains:
        lines.append(f"training loss: {summary['loss']:.4f}")
    if summary["metrics"] and trains:
        values = (f"{k} {math.nan if v is None else v:.4f}" for k, v in summary["metrics"].items())
        lines.append("metrics: " + ", ".join(values))
    if summary["best"]:
        lines.append(f"best: {best_text(summary['best'])}")
    skipped = {
        "damaged": "damaged records skipped",
        "nan_steps": "steps skipped",
        "updates_lost": "updates lost in damaged journals",
    }
    for key, label in skipped.items():
        if summary[key]:
            lines.append(f"{label}: {summary[key]:,}")
    kept = "output" if summary["output"] else "checkpoint"
    return [*lines, f"{kept}: {summary[kept]}"] if summary[kept] else lines
