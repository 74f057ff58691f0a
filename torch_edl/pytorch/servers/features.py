"""Find and copy the tensors of a minibatch's features."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch


def tensors(features: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a minibatch."""
    if isinstance(features, torch.Tensor):
        yield features
    elif isinstance(features, Mapping):
        for value in features.values():
            yield from tensors(value)
    elif isinstance(features, tuple | list):
        for value in features:
            yield from tensors(value)


def copied(features: Any) -> Any:
    """Copy a minibatch and its tensors."""
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
