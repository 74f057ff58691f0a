"""The report of a job that has ended: JSON for programs, a few lines for people."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_edl.cli.progress import TRAINS, counted, duration, number
from torch_edl.cli.submit import Outcome
from torch_edl.cli.terminal import complain
from torch_edl.config import JobConfig
from torch_edl.files import write_text
from torch_edl.jobs.status import as_dict

if TYPE_CHECKING:
    from rich.console import Console

_DONE = {
    "train": "trained on",
    "script": "trained on",
    "evaluate": "evaluated on",
    "predict": "predicted for",
}


def build(config: JobConfig, outcome: Outcome) -> dict[str, Any]:
    """The summary of ``--summary``; it has every key, however the job ended."""
    seen = as_dict(outcome.status) if outcome.status is not None else {}
    records = seen.get("records", {}).get("done", 0)
    wall_s = seen.get("wall_s", 0.0)
    evaluations = seen.get("evaluations", [])
    rate = seen.get("rates", {}).get("mean_records_per_s")
    return {
        "job": config.name,
        "kind": config.kind,
        "strategy": seen.get("strategy", ""),
        "reason": seen.get("reason", ""),
        "state": outcome.state,
        "records": records,
        "tasks": seen.get("tasks", {}).get("done", 0),
        "steps": seen.get("steps", 0),
        "wall_s": wall_s,
        "samples_per_s": rate or (round(records / wall_s, 3) if wall_s else 0.0),
        "loss": seen.get("loss"),
        "metrics": evaluations[-1]["metrics"] if evaluations else {},
        "evaluations": evaluations,
        "processes": _processes(seen.get("processes", []), outcome),
        "damaged": seen.get("damaged", 0),
        "nan_steps": seen.get("nan_steps", 0),
        "error": outcome.error,
        "checkpoint": seen.get("checkpoint", ""),
        "output": config.checkpoint.output if outcome.state == "finished" else "",
    }


def _processes(seen: list[dict[str, Any]], outcome: Outcome) -> list[dict[str, Any]]:
    kept = [{k: p[k] for k in ("role", "id", "pid", "exit")} for p in seen]
    kept = [p for p in kept if p["role"] != "master"]
    master = {"role": "master", "id": 0, "pid": outcome.master_pid, "exit": outcome.master_exit}
    return [master, *kept]


def write(path: str, config: JobConfig, outcome: Outcome) -> None:
    """Writes the summary, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    file = Path(path).expanduser().absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(build(config, outcome), indent=1) + "\n")


def forget(path: str) -> None:
    """Removes the summary of an earlier job, which could be mistaken for the new one."""
    with contextlib.suppress(FileNotFoundError):
        Path(path).expanduser().unlink()


def finish(config: JobConfig, outcome: Outcome, console: Console, *, file: str) -> int:
    """Writes the summary to ``file`` unless it is empty, prints how the job ended, and returns the
    exit code.

    Raises:
        OSError: the summary cannot be written; the end of the job is printed before.
    """
    try:
        if file:
            write(file, config, outcome)
    finally:
        code = conclude(config, outcome, console)
    return code


def conclude(config: JobConfig, outcome: Outcome, console: Console) -> int:
    """Prints how the job ended, a failure on stderr, and returns the exit code."""
    if outcome.state == "finished":
        for line in closing_lines(build(config, outcome)):
            console.print(line, soft_wrap=True)
    elif outcome.state == "stopped":
        console.print(_stopped_line(config, outcome), style="yellow", soft_wrap=True)
    else:
        tail = "" if outcome.usage_error else f"\nlogs: {outcome.logs}"
        complain(outcome.error.rstrip() + tail, details=outcome.traceback)
        kept = outcome.status.checkpoint if outcome.status is not None else ""
        rejected = config.checkpoint.resume and outcome.usage_error  # --resume was the error
        if kept and not rejected:
            console.print(f"newest checkpoint: {kept} (continue with --resume)", soft_wrap=True)
    return outcome.exit_code


def closing_lines(summary: dict[str, Any]) -> list[str]:
    """The last lines of a job that finished."""
    trains = summary["kind"] in TRAINS
    if summary["kind"] == "script" and not summary["steps"]:
        return [f"{summary['job']}: finished"]
    steps = f" in {counted(summary['steps'], 'step')}" if trains else ""
    records = counted(summary["records"], "record")
    first = (
        f"{summary['job']}: {_DONE[summary['kind']]} {records}{steps}, "
        f"{duration(summary['wall_s'])}, {number(summary['samples_per_s'])} records/s"
    )
    lines = [first]
    if summary["metrics"] and trains:
        values = (f"{k} {_shown(v)}" for k, v in summary["metrics"].items())
        lines.append("metrics: " + ", ".join(values))
    elif summary["loss"] is not None and trains:
        lines.append(f"training loss: {summary['loss']:.4f}")
    for key, label in (("damaged", "damaged records skipped"), ("nan_steps", "steps skipped")):
        if summary[key]:
            lines.append(f"{label}: {summary[key]:,}")
    if summary["output"]:
        lines.append(f"output: {summary['output']}")
    elif summary["checkpoint"]:
        lines.append(f"checkpoint: {summary['checkpoint']}")
    return lines


def _shown(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _stopped_line(config: JobConfig, outcome: Outcome) -> str:
    status = outcome.status
    if status is None:
        return f"{config.name}: stopped before the start"
    line = (
        f"{config.name}: stopped after {status.records_done:,} of {status.records_total:,} records"
    )
    if status.checkpoint:
        line += f"; newest checkpoint: {status.checkpoint} (continue with --resume)"
    return line
