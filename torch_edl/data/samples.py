"""Samples of a torch Dataset of which some raise: found one by one, named, or left out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from torch_edl.errors import EdlError, describe_error

log = logging.getLogger(__name__)

SKIP = "--skip-damaged leaves it out"

Name = Callable[[int], str]
"""From the index of a sample to what a person calls it: a record of a file."""


@dataclass(frozen=True)
class Damaged:
    """Stands where a sample raised."""

    index: int
    error: str


class Tolerant(Dataset[Any]):
    """A dataset with a :class:`Damaged` where one raises; needs :class:`Sound` to collate."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            return Damaged(index, describe_error(error))


class Sound:
    """Collates the samples that are sound; gives them (None if there is none), and the others.

    Args:
        collate: from a list of samples to a minibatch.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, list[Damaged]]:
        """A minibatch of what is sound."""
        sound = [sample for sample in samples if not isinstance(sample, Damaged)]
        damaged = [sample for sample in samples if isinstance(sample, Damaged)]
        return (self._collate(sound) if sound else None), damaged


def note(damaged: Iterable[Damaged], name: Name) -> None:
    """Says what was left out."""
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
    read: Dataset[Any] = Subset(Tolerant(dataset) if tolerant else dataset, indices)
    if tolerant:
        collate_fn = Sound(collate_fn or default_collate)
    taken = 0
    try:
        for item in DataLoader(read, collate_fn=collate_fn, **options):
            taken += 1
            yield item if tolerant else (item, ())
    except (Exception, SystemExit) as error:
        # Read again, one by one, in this process: which is it?
        failed = indices[taken * size : (taken + 1) * size]
        found = None if tolerant else _first_that_raises(dataset, failed)
        index, cause = found or (None, error)
        raise SampleError(cause, index) from cause


def read_all(dataset: Any, *, tolerant: bool) -> list[Any]:
    """All samples.

    Args:
        tolerant: with a :class:`Damaged` where one raises.

    Raises:
        SampleError: one raised.
    """
    samples: list[Any] = []
    for index in range(len(dataset)):
        try:
            samples.append(dataset[index])
        except (Exception, SystemExit) as error:
            if not tolerant or isinstance(error, SystemExit):
                raise SampleError(error, index) from error
            samples.append(Damaged(index, describe_error(error)))
    return samples


def _first_that_raises(dataset: Any, indices: Iterable[int]) -> tuple[int, BaseException] | None:
    for index in indices:
        try:
            dataset[index]
        except (Exception, SystemExit) as error:
            return index, error
    return None
