"""A minibatch, and an update, the minibatches of one commit.

A tensor is whatever has a shape: of numpy, torch or TensorFlow.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from torch_edl.data.randomness import Generator, TaskRandom
from torch_edl.errors import EdlError, UsageError, describe_error
from torch_edl.master_client.leases import HeldLease
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

LABEL_KEYS = ("labels", "label")

SKIP = "--skip-damaged leaves it out"


class BatchError(UsageError):
    """Something is no minibatch; the text says what it is, without a subject."""


@dataclass(frozen=True)
class Damaged:
    """Stands where a sample raised."""

    index: int
    error: str


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
    first: pb.FirstRecords | None = None
    """The first records of its task, if this is the first minibatch of an attempt on it."""


@dataclass(frozen=True)
class Minibatch:
    """One minibatch of an update."""

    number: int
    """Its place in the update, from 0."""
    first: int
    """Offset of its first record: in the task of a lease, or in the pass of a ring."""
    records: int
    """Records that the minibatch stands for."""
    batch: Any
    """What the body of the loop is given."""


@dataclass
class Update:
    """The minibatches that one process computes between two commits.

    An update of a task always holds the same records, whichever worker trains the task and
    however often, so that a server can tell what it has already.
    """

    first: int
    """Offset of its first record: in the task of ``lease``, or in the pass of a ring."""
    last: int
    """One after its last record. Records that the minibatches leave out are of the update too."""
    minibatches: Iterable[Minibatch]
    count: int
    """How many minibatches there are."""
    records: int
    """Records that give a gradient, of all processes that take part."""
    lease: HeldLease | None = None
    """Whose records these are, where tasks are leased."""
    incarnation: int = 0
    """Incarnation of the servers at which the task was leased."""
    retired_before: int = 0
    """All tasks before this one are done."""
    damaged: int = 0
    """Samples that were left out, because they cannot be read."""
    first_records: pb.FirstRecords | None = None
    """The first records of the task, if this is the first update of an attempt on it."""
    losses: list[float] = field(default_factory=list)
    """Of the minibatches, as far as they were computed."""
    name: Callable[[int, int], str] | None = None
    """What a person calls the records of the task from one offset up to another."""
    is_by_record: bool = False
    """Whether each sample of the minibatches is of the record at its place."""

    @property
    def loss(self) -> float:
        """The loss of the last minibatch; NaN if there is none."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def not_finite(self) -> int:
        """Minibatches without a gradient, since their loss is not finite."""
        return sum(not math.isfinite(loss) for loss in self.losses)

    def where(self, sample: int | None) -> str:
        """What a person calls the records of an update that failed; empty: not known.

        Args:
            sample: index of the one that failed, in the minibatch that was at work; None: not
                known.
        """
        if self.name is None:
            return ""
        if sample is None or not self.is_by_record:
            return self.name(self.first, self.last)
        minibatch = list(self.minibatches)[len(self.losses)]
        return self.name(minibatch.first + sample, minibatch.first + sample + 1)

    @property
    def ends_task(self) -> bool:
        """Whether the task is complete with this update."""
        return self.lease is not None and self.last == self.lease.end - self.lease.start


class Datasets(Protocol):
    """The datasets of a framework, which ``feed`` may return instead of tensors."""

    name: str
    """With its article: ``a torch Dataset``."""
    framework: str
    generator: Generator
    """The global generator of the framework."""

    def is_dataset(self, fed: Any) -> bool:
        """Whether what ``feed`` returned is one."""
        ...

    def size(self, dataset: Any) -> int:
        """The samples in a dataset."""
        ...

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """A tensor of an array that ``feed`` returned, or of a part of one."""
        ...

    def minibatches(
        self, dataset: Any, skip: int, random: TaskRandom, *, tolerant: bool
    ) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        """The first minibatch and those from number ``skip`` on, and what was left out of each.

        Args:
            random: what a dataset draws while it is read.
            tolerant: leave samples out that raise.

        Raises:
            SampleError: a sample raised.
        """
        ...

    def collated(self, dataset: Any, *, tolerant: bool) -> tuple[Any, Sequence[Damaged]]:
        """The whole dataset as one minibatch, and what was left out of it; raises as above."""
        ...


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
    lacks = " without labels" if is_tensor(value) or isinstance(value, tuple | list) else ""
    raise BatchError(
        f"{type(value).__name__}{lacks}; expected a tuple (features, labels), a dict with 'labels'"
    )


def length(value: Any) -> int:
    """Samples in a tensor, or in a tuple, list or dict of tensors.

    Raises:
        BatchError: there is no tensor, or their first dimensions differ.
    """
    if is_tensor(value):
        if len(value.shape) == 0:
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


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, of any framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def slice_tensors(
    value: Any, start: int, end: int, to_tensor: Callable[[np.ndarray[Any, Any]], Any]
) -> Any:
    """Samples ``start .. end - 1`` of every tensor in a tuple, list or dict: views, no copies.

    Args:
        to_tensor: makes a tensor of a part of an array of numpy.
    """
    if isinstance(value, np.ndarray):
        return to_tensor(value[start:end])
    if isinstance(value, Mapping):
        return {k: slice_tensors(v, start, end, to_tensor) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return tuple(slice_tensors(v, start, end, to_tensor) for v in value)
    return value[start:end]


def note(damaged: Iterable[Damaged], name: Callable[[int], str]) -> None:
    """Logs what was left out.

    Args:
        name: from the index of a sample to what a person calls it: a record of a file.
    """
    for sample in damaged:
        log.warning("left out: %s: the dataset of feed raised %s", name(sample.index), sample.error)


class SampleError(EdlError):
    """A dataset raised, which is the cause; the text says what, without a subject."""

    def __init__(self, cause: BaseException, index: int | None) -> None:
        super().__init__(f"raised {describe_error(cause)}")
        self.index = index
        """Of the sample that raised, if one did by itself."""
