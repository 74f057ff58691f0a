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
    "records": {"done": 0, "total": 0, "begun": 0},
    "tasks": {"todo": 0, "doing": 0, "done": 0},
    "rolled_back": {"times": 0, "records": 0},
    "processes": [],
    "rates": {},
}
"""Values of fields that are unknown until the master has answered."""
_NOT_STATUS = ("events", "history")


def as_dict(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return the fields of a status by their names in ``control.proto``.

    An absent message or optional number, and a number that is not finite, is None. The events and
    the history, which have files of their own, are left out.
    """
    names = (name for name in status.DESCRIPTOR.fields_by_name if name not in _NOT_STATUS)
    found = {name: _plain(status, name) for name in names}
    return {name: EMPTY.get(name) if value is None else value for name, value in found.items()}


def scalars(status: pb.GetStatusResponse) -> dict[str, float]:
    """Return the numbers of the training at a step, as an observer receives them."""
    running = [p for p in status.processes if p.role == "worker" and p.state == "running"]
    values = {f"rate/{name}": rate for name, rate in status.rates.items()}
    values |= {f"train/{name}": value for name, value in status.logged.items()}
    if status.kind != "script":  # a script logs its loss itself
        values["train/loss"] = status.loss
    values["train/workers"] = len(running)
    loaded = [p for p in status.processes if p.rows]
    if loaded and len(loaded) >= status.servers_wanted:  # a server may be restoring its rows
        values["servers/rows"] = sum(p.rows for p in loaded)
        values["servers/bytes"] = sum(p.bytes for p in loaded)
    return values


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return the values by sorted name; one that is not finite is None, because JSON has no NaN."""
    return {name: v if math.isfinite(v) else None for name, v in sorted(values.items())}


def _fields(message: Message) -> dict[str, Any]:
    return {name: _plain(message, name) for name in message.DESCRIPTOR.fields_by_name}


def _plain(message: Message, name: str) -> Any:
    """Return a field as plain data; None for a message or an optional number that is absent."""
    value, field = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return finite(value)
    if field.is_repeated:
        return [_fields(each) if isinstance(each, Message) else each for each in value]
    if field.has_presence and not message.HasField(name):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _fields(value) if isinstance(value, Message) else value
