"""The status of a job as plain data, for ``status --json`` and the folder of the job."""

from __future__ import annotations

import math
from typing import Any

from torch_edl.wire import master_pb2 as pb

EMPTY: dict[str, Any] = {
    "strategy": "",
    "epoch": 0,
    "records": {"done": 0, "total": 0},
    "tasks": {"todo": 0, "doing": 0, "done": 0},
    "processes": [],
    "rates": {},
}
"""Values of fields that are unknown until the master has answered."""


def as_dict(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return the documented fields of a status; numbers that are not finite become None."""
    return {
        "job": status.job,
        "kind": status.kind,
        "strategy": status.strategy,
        "reason": status.strategy_reason,
        "state": status.state,
        "epoch": status.epoch,
        "epochs": status.epochs or None,
        "records": {"done": status.records_done, "total": status.records_total},
        "tasks": {
            "todo": status.tasks_todo,
            "doing": status.tasks_doing,
            "done": status.tasks_done,
        },
        "processes": [
            {name: getattr(process, name) for name in process.DESCRIPTOR.fields_by_name}
            for process in status.processes
        ],
        "rates": {name: finite(rate) for name, rate in sorted(status.rates.items())},
        "steps": status.steps,
        "loss": finite(status.loss) if status.steps else None,
        "logged": {name: finite(value) for name, value in sorted(status.logged.items())},
        "evaluations": [{"steps": e.steps, "metrics": metrics_of(e)} for e in status.evaluations],
        "best": best_of(status),
        "workers_wanted": status.workers_wanted,
        "servers_wanted": status.servers_wanted,
        "checkpoint": status.checkpoint,
        "rolled_back": {"times": status.rollbacks, "records": status.records_rolled_back},
        "updates_lost": status.updates_lost,
        "damaged": status.damaged,
        "nan_steps": status.nan_steps,
        "wall_s": round(status.wall_s, 3),
        "error": status.error,
        "traceback": status.traceback,
    }


def metrics_of(evaluation: pb.EvaluationResult) -> dict[str, float | None]:
    """Return the metric values by name."""
    return {name: finite(value) for name, value in sorted(evaluation.metrics.items())}


def best_of(status: pb.GetStatusResponse) -> dict[str, Any] | None:
    """Return the best checkpoint by ``--keep-best``; None if there is none."""
    best = status.best
    if not best.metric:
        return None
    return {name: getattr(best, name) for name in best.DESCRIPTOR.fields_by_name}


def finite(value: float) -> float | None:
    """Return the number, or None if it is not finite, because JSON has no NaN."""
    return value if math.isfinite(value) else None
