"""What is said of a loss that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from torch_edl.data.batch import Batch, is_tensor
from torch_edl.errors import NanLossError

WITHOUT = (
    "let feed leave such records out, or put a number in the place (--on-nan skip leaves out whole "
    "minibatches, in training alone)"
)
"""What to do about a value that is not finite: metrics of an evaluation meet it, too."""

_MOST_SAMPLES = 10_000


def not_finite(
    loss: float, batch: Batch, array: Callable[[Any], Any], sample: int | None = None
) -> NanLossError:
    """The error for a job that stops at such a loss.

    Args:
        sample: whose loss alone is not finite, where the inputs are.
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
    """The first sample of a minibatch that fails by itself; None: none does, or all do.

    Args:
        fails: whether the sample at an index fails, or raises; it changes nothing.
    """
    failed = [_fails(fails, index) for index in range(min(samples, _MOST_SAMPLES))]
    return failed.index(True) if any(failed) and not all(failed) else None


def _fails(fails: Callable[[int], bool], index: int) -> bool:
    try:
        return fails(index)
    except Exception:
        return True


def cause(batch: Batch, array: Callable[[Any], Any]) -> tuple[str, int | None]:
    """What in a minibatch is not finite, as the beginning of a sentence, and the index of its first
    sample; empty: nothing.

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
