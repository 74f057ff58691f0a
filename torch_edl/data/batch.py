"""What ``feed`` returns: the features and labels of a minibatch, or a dataset of a framework.

A tensor is any object with a shape and a dtype: of numpy, torch or TensorFlow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from torch_edl.data.randomness import Generator, TaskRandom
from torch_edl.data.trees import is_tensor, leaves, transform
from torch_edl.errors import EdlError, UsageError, describe_error
from torch_edl.interfaces import Damaged
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

LABEL_KEYS = ("labels", "label")

SKIP = "--skip-damaged leaves it out"


class Mode(StrEnum):
    """The argument ``mode`` of ``feed``, which equals its text: ``mode == "training"``."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


MODES = {
    pb.TASK_TRAIN: Mode.TRAINING,
    pb.TASK_EVALUATE: Mode.EVALUATION,
    pb.TASK_PREDICT: Mode.PREDICTION,
}
"""Mode by kind of task, for all kinds of tasks that read records."""


class BatchError(UsageError):
    """A value is not a minibatch. The message describes the value, and the caller says whose value
    it is, as in "feed returned a scalar"."""


class Datasets(Protocol):
    """The datasets of a framework, which ``feed`` may return instead of tensors.

    Each backend has one, so that this package imports no framework.
    """

    name: str
    """Name of a dataset in messages, with its article: ``a torch Dataset``."""
    framework: str
    """Name of the framework."""
    generator: Generator
    """Global random number generator of the framework."""

    def is_dataset(self, fed: Any) -> bool:
        """Return True if the value that ``feed`` returned is a dataset of the framework."""
        ...

    def size(self, dataset: Any) -> int:
        """Return the number of samples in a dataset."""
        ...

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Convert a numpy array to a tensor."""
        ...

    def minibatches(
        self, dataset: Any, records: int, skip: int, random: TaskRandom, *, tolerant: bool
    ) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        """Yield the first minibatch and those from number ``skip`` on, each with its damaged
        samples. The dataset has one sample for each of ``records`` records, or fewer. A sample that
        raises is left out if ``tolerant``, and raises SampleError otherwise. ``random`` has the
        random numbers that the dataset draws while it is read."""
        ...

    def collated(self, dataset: Any, *, tolerant: bool) -> tuple[Any, Sequence[Damaged]]:
        """Return the whole dataset as one minibatch, and its damaged samples; see
        :meth:`minibatches`."""
        ...


def split(value: Any) -> tuple[Any, Any]:
    """Return the features and labels of a tuple ``(features..., labels)`` or a dict with
    ``labels``; raise BatchError for any other value."""
    if isinstance(value, Mapping):
        rest = dict(value)
        for key in LABEL_KEYS:
            if key in rest:
                return rest, rest.pop(key)
        raise BatchError(f"a dict of {sorted(rest)} without labels, which belong under 'labels'")
    if isinstance(value, tuple | list) and len(value) >= 2:
        *features, labels = value
        return (features[0] if len(features) == 1 else tuple(features)), labels
    lacks = " without labels" if is_tensor(value) or isinstance(value, tuple | list) else ""
    raise BatchError(
        f"{type(value).__name__}{lacks}; expected a tuple (features, labels), a dict with 'labels'"
    )


def length(value: Any) -> int:
    """Return the number of samples in a tree of tensors; raise BatchError if there is no tensor,
    or their first dimensions differ."""
    lengths = {_length(leaf) for _, leaf in leaves(value)}
    if not lengths:
        raise BatchError(f"{type(value).__name__} where a tensor is expected")
    if len(lengths) != 1:
        raise BatchError(
            f"parts with {sorted(lengths)} samples; all must have the same first dimension"
        )
    return lengths.pop()


def _length(leaf: Any) -> int:
    if not is_tensor(leaf):
        raise BatchError(f"{type(leaf).__name__} where a tensor is expected")
    if len(leaf.shape) == 0:
        raise BatchError("a scalar; the first dimension must be samples")
    return int(leaf.shape[0])


def slice_tensors(
    value: Any, start: int, end: int, to_tensor: Callable[[np.ndarray[Any, Any]], Any]
) -> Any:
    """Return a tree with views of the samples ``start .. end - 1`` of all tensors; ``to_tensor``
    converts slices of numpy arrays."""

    def sliced(leaf: Any) -> Any:
        part = leaf[start:end]
        return to_tensor(part) if isinstance(leaf, np.ndarray) else part

    return transform(value, sliced)


def note(damaged: Iterable[Damaged], name: Callable[[int], str]) -> None:
    """Log a warning for each damaged sample; ``name`` is a function from an index to a name."""
    for sample in damaged:
        log.warning("left out: %s: the dataset of feed raised %s", name(sample.index), sample.error)


class SampleError(EdlError):
    """A dataset raised an exception; the message describes it and has no subject."""

    def __init__(self, cause: BaseException, index: int | None) -> None:
        super().__init__(f"raised {describe_error(cause)}")
        self.index = index
        """Index of the sample that raised; None: unknown."""
