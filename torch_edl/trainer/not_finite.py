"""What is said of a loss that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from torch_edl.data.batch import Batch, is_tensor
from torch_edl.errors import NanLossError


def not_finite(loss: float, batch: Batch, array: Callable[[Any], Any]) -> NanLossError:
    """The error for a job that stops at such a loss."""
    why = cause(batch, array)
    advice = "mend the data" if why else "lower the learning rate, look at the data"
    return NanLossError(
        f"the loss is {loss}{': ' * bool(why)}{why}; {advice}, or leave such "
        "minibatches out with --on-nan skip"
    )


def cause(batch: Batch, array: Callable[[Any], Any]) -> str:
    """What in a minibatch is not finite, as the beginning of a sentence; empty: nothing.

    Args:
        array: makes an array of a tensor.
    """
    for name, tensor in (*_tensors("features", batch.features), *_tensors("labels", batch.labels)):
        values = array(tensor)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            place = bad[0].tolist()
            value = float(values[tuple(place)])
            at = f"[{', '.join(map(str, place))}]" if place else ""
            samples = len(set(bad[:, 0].tolist())) if place else 1
            return (
                f"the input {name}{at} is {value} (samples of this minibatch with such a value: "
                f"{samples} of {batch.size})"
            )
    return ""


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_tensor(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(f"{name}[{key!r}]", part)
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from _tensors(f"{name}[{number}]", part)
