"""Diagnostics of training steps: causes of a loss that is not finite, statistics of the outputs of
layers (``--log-layers``), and the form of values in messages."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torch_edl.data.trees import is_tensor, leaves
from torch_edl.errors import NanLossError
from torch_edl.interfaces import Batch

_layers = logging.getLogger("torch_edl.layers")

WITHOUT = (
    "let feed leave such records out, or replace the value (--on-nan skip leaves out whole "
    "minibatches, only in training)"
)
"""Advice for an input that is not finite, in training or in an evaluation."""

_MOST_SAMPLES = 10_000
_LOG_EVERY = 50  # minibatches


def not_finite(
    found: str,
    batch: Batch,
    array: Callable[[Any], Any],
    sample: int | None = None,
    *,
    without: str = WITHOUT,
    skip: str = "leave such minibatches out with --on-nan skip",
) -> NanLossError:
    """Return the error for a job that stops at a loss or a gradient that is not finite.

    Args:
        found: clause that says what is not finite.
        array: converts a tensor to an array.
        sample: index of the single sample whose loss is not finite although its inputs are; None:
            unknown.
        without: advice for an input that is not finite.
        skip: advice on how to leave the gradients out.
    """
    why, at = cause(batch, array)
    if why:
        return NanLossError(f"{found}: {why}; {without}", at)
    advice = f"lower the learning rate, look at the data, or {skip}"
    return NanLossError(f"{found}; {advice}", sample)


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
    parts = {"features": batch.features, "labels": batch.labels}
    for (name, *path), leaf in leaves(parts):
        if not is_tensor(leaf):
            continue
        values = array(leaf)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            place = bad[0].tolist()
            value = float(values[tuple(place)])
            at = "".join(f"[{key!r}]" for key in path)
            at += f"[{', '.join(map(str, place))}]" if place else ""
            samples = len(set(bad[:, 0].tolist())) if place else 1
            text = (
                f"the input {name}{at} is {value} (samples of this minibatch with such a value: "
                f"{samples} of {batch.size})"
            )
            return text, place[0] if place else None
    return "", None


class LayerLog:
    """Logs statistics of the outputs of layers, once every 50 minibatches.

    Args:
        pattern: glob pattern of names; empty: no layer matches.
        names: names of all layers.
    """

    def __init__(self, pattern: str, names: Sequence[str]) -> None:
        self.watched = [name for name in names if fnmatch.fnmatch(name, pattern)]
        """Names of the layers that match."""
        self.count = 0
        """Number of the current minibatch; 0 before the first. The framework sets the number."""
        if pattern and not self.watched:
            known = ", ".join(names)
            _layers.warning("--log-layers %s: no module matches; there are %s", pattern, known)

    @property
    def due(self) -> bool:
        """Whether the outputs of the current minibatch are logged."""
        return self.count % _LOG_EVERY == 1

    def log(self, name: str, shape: Sequence[int], *figures: float) -> None:
        """Log the mean, standard deviation, minimum and maximum of a layer's output."""
        _layers.info(
            "step %d %s %s: mean %.4g std %.4g min %.4g max %.4g",
            self.count,
            name,
            tuple(shape),
            *figures,
        )


def describe_parts(value: Any, describe: Callable[[Any], str]) -> str:
    """Return the type of a value that is no tensor, for messages; ``describe`` is called for each
    part of a tuple, a list or a mapping."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(describe, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {describe(part)}' for name, part in value.items())}}}"
    return type(value).__name__
