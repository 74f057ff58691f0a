"""Checks that saved values are of the model in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_edl.errors import CheckpointError

_SHOWN = 3


def complaint(where: object, difference: str) -> str:
    """The message about values of another model."""
    return (
        f"{where} is of another model: {difference}; use the model file of the job that "
        "wrote it, with the same arguments after --"
    )


def check(saved: Mapping[str, Any], own: Mapping[str, Any], *, where: object) -> None:
    """Compares names and shapes.

    Args:
        saved: shape by name of the saved values.
        own: shape by name of the values of the model in this process.
        where: the folder, or whatever the values come from.

    Raises:
        CheckpointError: names or shapes differ.
    """
    lacking = [name for name in own if name not in saved]
    besides = sorted(name for name in saved if name not in own)
    differ = [
        f"{name} is {_shape(saved[name])} there and {_shape(own[name])} here"
        for name in own
        if name in saved and tuple(saved[name]) != tuple(own[name])
    ]
    found = [f"it lacks {_some(lacking)}"] * bool(lacking)
    found += [f"it has {_some(besides)} besides"] * bool(besides)
    found += [_some(differ)] * bool(differ)
    if found:
        raise CheckpointError(complaint(where, ", ".join(found)))


def _shape(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"


def _some(texts: list[str]) -> str:
    rest = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
