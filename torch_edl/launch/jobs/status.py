"""The status of a job as plain data, for ``status --json`` and the folder of the job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

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
        "processes": [_fields(process) for process in status.processes],
        "rates": _finite(status.rates),
        "steps": status.steps,
        "loss": status.loss if status.steps and math.isfinite(status.loss) else None,
        "logged": _finite(status.logged),
        "evaluations": [
            {"steps": e.steps, "metrics": _finite(e.metrics)} for e in status.evaluations
        ],
        "best": _fields(status.best) if status.best.metric else None,
        "workers_wanted": status.workers_wanted,
        "servers_wanted": status.servers_wanted,
        "checkpoint": status.checkpoint,
        "rolled_back": {"times": status.rollbacks, "records": status.records_rolled_back},
        "updates_lost": status.updates_lost,
        "records_early": status.records_early,
        "losses": [_fields(each) for each in status.losses],
        "outages": [_fields(each) for each in status.outages],
        "stalled_s": round(status.stalled_s, 3),
        "damaged": status.damaged,
        "nan_steps": status.nan_steps,
        "wall_s": round(status.wall_s, 3),
        "error": status.error,
        "traceback": status.traceback,
    }


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return the values by sorted name; one that is not finite is None, because JSON has no NaN."""
    return {name: v if math.isfinite(v) else None for name, v in sorted(values.items())}


def _fields(message: Message) -> dict[str, Any]:
    return {name: _plain(message, name) for name in message.DESCRIPTOR.fields_by_name}


def _plain(message: Message, name: str) -> Any:
    """Return a field as plain data; None for a message or an optional number that is absent."""
    value, field = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _finite(value)
    if field.is_repeated:
        return [_fields(each) if isinstance(each, Message) else each for each in value]
    if field.has_presence and not message.HasField(name):
        return None
    return _fields(value) if isinstance(value, Message) else value
