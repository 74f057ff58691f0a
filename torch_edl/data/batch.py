"""A minibatch: features, labels, and how many samples; from whatever a dataset gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_edl.data.samples import Damaged
from torch_edl.errors import UsageError

LABEL_KEYS = ("labels", "label")


class BatchError(UsageError):
    """Something is no minibatch; the text says what it is, without a subject."""


@dataclass(frozen=True)
class Batch:
    """One minibatch."""

    features: Any
    """All but the labels: a tensor, a tuple or a dict of tensors."""
    labels: Any
    """None in prediction."""
    size: int
    """Samples in it."""
    damaged: Sequence[Damaged] = ()
    """What was left out of it."""


def split(value: Any) -> tuple[Any, Any]:
    """Features and labels of a tuple ``(features..., labels)`` or a dict with ``labels``.

    Raises:
        BatchError: it is neither.
    """
    if isinstance(value, Mapping):
        rest = dict(value)
        for key in LABEL_KEYS:
            if key in rest:
                return rest, rest.pop(key)
        raise BatchError(f"a dict of {sorted(rest)} without labels, which belong under 'labels'")
    if isinstance(value, tuple | list) and len(value) >= 2:
        *features, labels = value
        return (features[0] if len(features) == 1 else tuple(features)), labels
    lacks = " without labels" if isinstance(value, torch.Tensor | np.ndarray | tuple | list) else ""
    raise BatchError(
        f"{type(value).__name__}{lacks}; expected a tuple (features, labels), a dict with 'labels'"
    )


def length(value: Any) -> int:
    """Samples in a tensor, or in a tuple, list or dict of tensors.

    Raises:
        BatchError: there is no tensor, or their first dimensions differ.
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim == 0:
            raise BatchError("a scalar; the first dimension must be samples")
        return int(value.shape[0])
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list) and value:
        lengths = {length(v) for v in value}
        if len(lengths) != 1:
            raise BatchError(
                f"parts with {sorted(lengths)} samples; all must have the same first dimension"
            )
        return lengths.pop()
    raise BatchError(f"{type(value).__name__} where a tensor is expected")


def slice_tensors(value: Any, start: int, end: int) -> Any:
    """Samples ``start .. end - 1`` of every tensor in a tuple, list or dict: views, no copies."""
    if isinstance(value, np.ndarray):
        part = value[start:end]
        # Columns of a table may not be written to, and torch has no such tensors.
        return torch.from_numpy(part if part.flags.writeable else part.copy())
    if isinstance(value, Mapping):
        return {k: slice_tensors(v, start, end) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return tuple(slice_tensors(v, start, end) for v in value)
    return value[start:end]
