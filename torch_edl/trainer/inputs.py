"""From what a DataLoader yields to what a model and a loss are called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torch_edl.data.batch import LABEL_KEYS, Batch, BatchError, length, split
from torch_edl.errors import UsageError


def loader_options(
    num_workers: int, collate_fn: Callable[[Any], Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Of a ``DataLoader``: only those that are set, since a stream takes few."""
    made = dict(options)
    if num_workers:
        made["num_workers"] = num_workers
    if collate_fn is not None:
        made["collate_fn"] = collate_fn
    return made


def labelled(value: Any, device: torch.device) -> Batch:
    """A batch with its labels, on the device.

    Raises:
        UsageError: it has none.
    """
    try:
        features, labels = split(value)
        size = length(labels if isinstance(labels, torch.Tensor) and labels.ndim else features)
    except BatchError as error:
        raise UsageError(f"a batch of the dataset is {error}") from None
    return Batch(moved(features, device), moved(labels, device), size)


def moved(value: Any, device: torch.device) -> Any:
    """The same with every tensor in it on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: moved(part, device) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(moved(part, device) for part in value)
    return value


def required_inputs(model: nn.Module) -> int:
    """How many inputs ``forward`` cannot do without; 1 if that cannot be said."""
    found = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return max(1, len(found))


def features_of(value: Any, inputs: int) -> Any:
    """The features of a batch that may have labels: a dict without ``labels``; of a tuple with
    more parts than ``forward`` needs, all but the last."""
    if isinstance(value, Mapping):
        return {key: part for key, part in value.items() if key not in LABEL_KEYS}
    if not isinstance(value, tuple | list):
        return value
    parts = tuple(value) if len(value) <= inputs else tuple(value[:-1])
    return parts[0] if len(parts) == 1 else parts
