"""Where a minibatch is not finite: the first cause to look for when its loss is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torch_edl.data.batch import Batch


def cause(batch: Batch) -> str:
    """What in a minibatch is not finite, as the beginning of a sentence; empty: nothing."""
    for name, tensor in (*_tensors("features", batch.features), *_tensors("labels", batch.labels)):
        if not tensor.is_floating_point():
            continue
        bad = (~torch.isfinite(tensor)).nonzero()
        if len(bad):
            place = bad[0].tolist()
            value = float(tensor[tuple(place)])
            at = f"[{', '.join(map(str, place))}]" if place else ""
            samples = len(set(bad[:, 0].tolist())) if place else 1
            return (
                f"the input {name}{at} is {value} (samples of this minibatch with such a value: "
                f"{samples} of {batch.size})"
            )
    return ""


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(f"{name}[{key!r}]", part)
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from _tensors(f"{name}[{number}]", part)
