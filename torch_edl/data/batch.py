"""A minibatch, made of whatever a dataset gives, and an update, the minibatches of one commit.

Samples of a dataset may raise: they are found one by one, named, or left out.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from torch_edl.errors import EdlError, UsageError, describe_error
from torch_edl.master_client.leases import Lease

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
    lease: Lease | None = None
    """Whose records these are, where tasks are leased."""
    incarnation: int = 0
    """Incarnation of the servers at which the task was leased."""
    retired_before: int = 0
    """All tasks before this one are done."""
    damaged: int = 0
    """Samples that were left out, because they cannot be read."""
    losses: list[float] = field(default_factory=list)
    """Of the minibatches, as far as they were computed."""

    @property
    def loss(self) -> float:
        """The loss of the last minibatch; NaN if there is none."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def not_finite(self) -> int:
        """Minibatches without a gradient, since their loss is not finite."""
        return sum(not math.isfinite(loss) for loss in self.losses)

    @property
    def ends_task(self) -> bool:
        """Whether the task is complete with this update."""
        return self.lease is not None and self.last == self.lease.end - self.lease.start


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


class _Tolerant(Dataset[Any]):
    """A dataset with a :class:`Damaged` where one raises; :func:`collate_sound` collates it."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            return Damaged(index, describe_error(error))


def collate_sound(
    collate: Callable[[list[Any]], Any], samples: Sequence[Any]
) -> tuple[Any, list[Damaged]]:
    """A minibatch of the samples that are sound (None if there is none), and the others."""
    sound = [sample for sample in samples if not isinstance(sample, Damaged)]
    damaged = [sample for sample in samples if isinstance(sample, Damaged)]
    return (collate(sound) if sound else None), damaged


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


def minibatches(
    dataset: Any, *, skip: int, tolerant: bool, collate_fn: Any, **options: Any
) -> Iterator[tuple[Any, Sequence[Damaged]]]:
    """The minibatches of a dataset from number ``skip`` on, and what was left out of each.

    Args:
        tolerant: leave samples out that raise; a stream has none that could be.
        options: of the ``DataLoader``, ``batch_size`` among them.

    Raises:
        SampleError: it raised.
    """
    if isinstance(dataset, IterableDataset):
        loader: DataLoader[Any] = DataLoader(dataset, collate_fn=collate_fn, **options)
        try:
            yield from ((item, ()) for item in itertools.islice(loader, skip, None))
        except (Exception, SystemExit) as error:
            raise SampleError(error, None) from error
        return
    size = options["batch_size"]
    indices = range(skip * size, len(dataset))
    read: Dataset[Any] = Subset(_Tolerant(dataset) if tolerant else dataset, indices)
    if tolerant:
        collate_fn = partial(collate_sound, collate_fn or default_collate)
    taken = 0
    try:
        for item in DataLoader(read, collate_fn=collate_fn, **options):
            taken += 1
            yield item if tolerant else (item, ())
    except (Exception, SystemExit) as error:
        if not tolerant:  # Read again, one by one, in this process: which is it?
            read_all(dataset, indices[taken * size : (taken + 1) * size])
        raise SampleError(error, None) from error


def read_all(dataset: Any, indices: Iterable[int], *, tolerant: bool = False) -> list[Any]:
    """The samples at some indices.

    Args:
        tolerant: with a :class:`Damaged` where one raises.

    Raises:
        SampleError: one raised.
    """
    samples: list[Any] = []
    for index in indices:
        try:
            samples.append(dataset[index])
        except (Exception, SystemExit) as error:
            if not tolerant or isinstance(error, SystemExit):
                raise SampleError(error, index) from error
            samples.append(Damaged(index, describe_error(error)))
    return samples
