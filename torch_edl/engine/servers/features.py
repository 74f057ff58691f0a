"""The tensors of the features of a minibatch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch


def version(tensor: torch.Tensor) -> int:
    """How often it was changed in place; tensors of inference mode are not counted."""
    return 0 if tensor.is_inference() else tensor._version


def tensors(features: Any) -> Iterator[torch.Tensor]:
    """The tensors of a minibatch."""
    if isinstance(features, torch.Tensor):
        yield features
    elif isinstance(features, Mapping):
        for value in features.values():
            yield from tensors(value)
    elif isinstance(features, tuple | list):
        for value in features:
            yield from tensors(value)


def copied(features: Any) -> Any:
    """The same minibatch with tensors of its own."""
    if isinstance(features, torch.Tensor):
        return features.clone()
    if isinstance(features, MutableMapping):
        own = copy.copy(features)
        for key, value in features.items():
            own[key] = copied(value)
        return own
    if isinstance(features, tuple):
        made = [copied(value) for value in features]
        return type(features)(*made) if hasattr(features, "_fields") else tuple(made)
    return [copied(value) for value in features] if isinstance(features, list) else features
