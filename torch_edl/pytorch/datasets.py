"""Torch datasets that ``feed`` may return in place of tensors, read by a ``DataLoader``.

Samples that raise are either left out, or located by index for the error message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from torch_edl.config import DataConfig
from torch_edl.data.batch import SampleError
from torch_edl.data.cuts import minibatch_cuts
from torch_edl.data.randomness import Generator, TaskRandom
from torch_edl.errors import describe_error
from torch_edl.interfaces import Damaged


def _restore(state: bytes) -> None:
    kept = np.frombuffer(state, np.uint8).copy()
    torch.default_generator.set_state(torch.from_numpy(kept))


class TorchDatasets:
    """Datasets of torch; see :class:`~torch_edl.data.batch.Datasets`."""

    name = "a torch Dataset"
    framework = "torch"
    generator = Generator(
        seed=torch.default_generator.manual_seed,
        state=lambda: torch.default_generator.get_state().numpy().tobytes(),
        restore=_restore,
    )

    def __init__(self, config: DataConfig) -> None:
        self._config = config

    def is_dataset(self, fed: Any) -> bool:
        return isinstance(fed, Dataset)

    def size(self, dataset: Any) -> int:
        return len(dataset)

    def tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        # Columns of a table are read-only, which torch tensors cannot be.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def minibatches(
        self, dataset: Any, records: int, skip: int, random: TaskRandom, *, tolerant: bool
    ) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        # The first minibatch is always read, to compare it with earlier attempts.
        config = self._config
        collate = getattr(dataset, "collate_fn", None)
        options: dict[str, Any] = {
            "num_workers": config.loader_workers,
            "pin_memory": config.pin_memory,
            "generator": torch.Generator().manual_seed(random.seed),
        }
        if isinstance(dataset, IterableDataset):
            # Each process of a DataLoader would read the whole dataset.
            options["num_workers"] = min(1, config.loader_workers)
            largest = minibatch_cuts(records, config.batch_size)[1]
            loader: DataLoader[Any] = DataLoader(
                dataset, batch_size=largest, collate_fn=collate, **options
            )
            try:
                for number, item in enumerate(random.iterate(iter(loader))):
                    if number == 0 or number >= skip:
                        yield item, ()
            except (Exception, SystemExit) as error:
                raise SampleError(error, None) from error
            return
        ends = minibatch_cuts(len(dataset), config.batch_size)
        spans = [[*range(*span)] for span in itertools.pairwise(ends)]
        spans = [*(spans[:1] if skip else ()), *spans[skip:]]
        read: Dataset[Any] = _Tolerant(dataset) if tolerant else dataset
        if tolerant:
            collate = partial(_collate_sound, collate or default_collate)
        taken = 0
        try:
            for item in DataLoader(read, batch_sampler=spans, collate_fn=collate, **options):
                taken += 1
                yield item if tolerant else (item, ())
        except (Exception, SystemExit) as error:
            if not tolerant:  # read again, one by one, to find the index of the sample
                _read_all(dataset, spans[taken])
            raise SampleError(error, None) from error

    def collated(self, dataset: Any, *, tolerant: bool) -> tuple[Any, Sequence[Damaged]]:
        collate = getattr(dataset, "collate_fn", None) or default_collate
        if isinstance(dataset, IterableDataset):
            return collate(list(dataset)), ()
        return _collate_sound(collate, _read_all(dataset, range(len(dataset)), tolerant=tolerant))


class _Tolerant(Dataset[Any]):
    """A dataset that returns :class:`Damaged` for a sample that raises; its samples are collated by
    :func:`_collate_sound`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            return Damaged(index, describe_error(error))


def _collate_sound(
    collate: Callable[[list[Any]], Any], samples: Sequence[Any]
) -> tuple[Any, list[Damaged]]:
    """Return a minibatch of the undamaged samples (None if there are none), and the damaged
    samples."""
    sound = [sample for sample in samples if not isinstance(sample, Damaged)]
    damaged = [sample for sample in samples if isinstance(sample, Damaged)]
    return (collate(sound) if sound else None), damaged


def _read_all(dataset: Any, indices: Iterable[int], *, tolerant: bool = False) -> list[Any]:
    """Return the samples at some indices.

    Args:
        tolerant: return :class:`Damaged` for a sample that raises.

    Raises:
        SampleError: a sample raised, unless ``tolerant``; or a sample called ``sys.exit()``.
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
