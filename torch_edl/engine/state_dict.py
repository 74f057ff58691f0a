"""Tensors in lists, tuples and dicts, as optimizers keep them: by name, and what JSON can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_edl.errors import UsageError

PLAIN = (str, int, float, type(None))
"""What JSON says as it is; a bool is an int."""


def flatten(value: Any, name: str, tensors: dict[str, torch.Tensor], owner: str) -> Any:
    """What JSON can say of a value; its tensors go to ``tensors``, each named by its path.

    Raises:
        UsageError: something in it can be neither.
    """
    if isinstance(value, torch.Tensor):
        while name in tensors:  # {"a.b": ..., "a": {"b": ...}}
            name += "_"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, PLAIN):
                raise unsayable(owner, f"a key of {name}", key)
        items = value.items()
        return {"dict": [[k, flatten(v, f"{name}.{k}", tensors, owner)] for k, v in items]}
    if type(value) in (list, tuple):
        parts = [flatten(part, f"{name}.{i}", tensors, owner) for i, part in enumerate(value)]
        return {type(value).__name__: parts}
    if not isinstance(value, PLAIN):
        raise unsayable(owner, name, value)
    return value


def unflatten(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The inverse of :func:`flatten`; takes what it needs out of ``tensors``."""
    if not isinstance(value, dict):
        return value
    ((kind, part),) = value.items()
    if kind == "tensor":
        return tensors.pop(part)
    if kind == "dict":
        return {key: unflatten(item, tensors) for key, item in part}
    items = [unflatten(item, tensors) for item in part]
    return tuple(items) if kind == "tuple" else items


def undo_casts(optimizer: torch.optim.Optimizer, given: Mapping[Any, Any]) -> None:
    """Makes the state what ``load_state_dict`` was given: it gives tensors the type of their
    parameter and makes nonsense of texts, so who joined would go on otherwise than its source."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    for index, parameter in enumerate(parameters):
        if index in given:
            optimizer.state[parameter] = _undone(optimizer.state[parameter], given[index])


def _undone(loaded: Any, given: Any) -> Any:
    if isinstance(given, str):
        return given
    if type(loaded) is not type(given):  # the optimizer wants it so: Adam a tensor of steps
        return loaded
    if isinstance(given, torch.Tensor):
        return loaded if loaded.dtype == given.dtype else given.to(loaded.device)
    if isinstance(given, dict):
        return {key: _undone(value, given.get(key)) for key, value in loaded.items()}
    if isinstance(given, list | tuple) and len(given) == len(loaded):
        return type(given)(_undone(*pair) for pair in zip(loaded, given, strict=True))
    return loaded


def unsayable(owner: str, where: str, value: Any) -> UsageError:
    """The error for a part of a state that can be neither sent nor written."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        kind += f" ({value.layout}, shape {tuple(value.shape)})"
    return UsageError(
        f"{owner}: its state has a {kind} at {where}, which no checkpoint and no process that "
        "joins can take over; expected dense tensors, numbers, texts, None, and lists, tuples and "
        "dicts of these: keep it elsewhere, or use another optimizer"
    )
