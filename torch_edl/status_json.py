"""The status of a job as plain data: what ``status --json`` prints and the folder keeps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_edl.wire import master_pb2 as pb


def as_dict(status: pb.GetStatusResponse) -> dict[str, Any]:
    """The fields of a status that scripts may rely on; numbers that are not finite become None."""
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
            {
                "role": p.role,
                "id": p.id,
                "pid": p.pid,
                "state": p.state,
                "address": p.address,
                "exit": p.exit,
                "log": p.log,
            }
            for p in status.processes
        ],
        "rates": {name: finite(rate) for name, rate in sorted(status.rates.items())},
        "steps": status.steps,
        "loss": finite(status.loss) if status.steps else None,
        "logged": {name: finite(value) for name, value in sorted(status.logged.items())},
        "evaluations": [{"steps": e.steps, "metrics": metrics_of(e)} for e in status.evaluations],
        "workers_wanted": status.workers_wanted,
        "checkpoint": status.checkpoint,
        "damaged": status.damaged,
        "nan_steps": status.nan_steps,
        "wall_s": round(status.wall_s, 3),
        "error": status.error,
        "traceback": status.traceback,
    }


def metrics_of(evaluation: pb.EvaluationResult) -> dict[str, float | None]:
    """Metric name to value, by name."""
    return {name: finite(value) for name, value in sorted(evaluation.metrics.items())}


def finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
