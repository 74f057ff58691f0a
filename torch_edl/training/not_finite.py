"""Messages about a loss that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from torch_edl.data.batch import is_tensor
from torch_edl.errors import NanLossError
from torch_edl.interfaces import Batch

WITHOUT = (
    "let feed leave such records out, or put a number in the place (--on-nan skip leaves out whole "
    "minibatches, in training alone)"
)
"""Advice for an input that is not finite, in training or in an evaluation."""

_MOST_SAMPLES = 10_000


def not_finite(
    loss: float, batch: Batch, array: Callable[[Any], Any], sample: int | None = None
) -> NanLossError:
    """Return the error for a job that stops at a loss that is not finite.

    Args:
        array: converts a tensor to an array.
        sample: index of the single sample whose loss is not finite although its inputs are; None:
            unknown.
    """
    why, at = cause(batch, array)
    if why:
        return NanLossError(f"the loss is {loss}: {why}; {WITHOUT}", at)
    return NanLossError(
        f"the loss is {loss}; lower the learning rate, look at the data, or leave such minibatches "
        "out with --on-nan skip",
        sample,
    )


def the_one(samples: int, fails: Callable[[int], bool]) -> int | None:
    """Return the index of the first sample of a minibatch that fails by itself; None if no sample
    fails, or all do. Only the first 10,000 samples are tried.

    Args:
        fails: returns True or raises if the sample at an index fails; must not change the model.
    """
    failed = [_fails(fails, index) for index in range(min(samples, _MOST_SAMPLES))]
    return failed.index(True) if any(failed) and not all(failed) else None


def _fails(fails: Callable[[int], bool], index: int) -> bool:
    try:
        return fails(index)
    except Exception:
        return True


def cause(batch: Batch, array: Callable[[Any], Any]) -> tuple[str, int | None]:
    """Find the first input of a minibatch that is not finite.

    Args:
        array: converts a tensor to an array.

    Returns:
        A clause for a message, empty if all inputs are finite; and the index of the first such
        sample, None if there is none or the input is a scalar.
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
            text = (
                f"the input {name}{at} is {value} (samples of this minibatch with such a value: "
                f"{samples} of {batch.size})"
            )
            return text, place[0] if place else None
    return "", None


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_tensor(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(f"{name}[{key!r}]", part)
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from _tensors(f"{name}[{number}]", part)
