"""The loader of a script's training loop. The body of the loop is the training step."""

from __future__ import annotations

import atexit
import inspect
import os
import weakref
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Any, Protocol

from torch.utils.data import IterableDataset, Sampler

from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import open_batches
from torch_edl.pytorch.first_records import digests_of_dataset


class TrainingJob(Protocol):
    """The part of a job that a loader uses."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def batches(self, loader: Loader) -> Generator[Any]:
        """Yield the batches of one pass."""
        ...


# Open loops over loaders, and the job of each loop.
_loops: weakref.WeakKeyDictionary[Generator[Any], TrainingJob] = weakref.WeakKeyDictionary()


def close_loops(job: TrainingJob | None = None) -> None:
    """Close all loops of a job that its script has left early. The last update of a loop counts.

    Args:
        job: the job; None: all jobs.
    """
    for loop, its in list(_loops.items()):
        if job in (None, its) and inspect.getgeneratorstate(loop) != inspect.GEN_RUNNING:
            loop.close()


def is_in_loop(job: TrainingJob) -> bool:
    """Return True while the body of a loop over a loader of the job runs."""
    return any(
        its is job and inspect.getgeneratorstate(loop) == inspect.GEN_SUSPENDED
        for loop, its in _loops.items()
    )


# An exit handler runs before the interpreter clears the modules.
atexit.register(close_loops)
os.register_at_fork(after_in_child=_loops.clear)  # the loops belong to the parent process


class DealtRecords(Sampler[int]):
    """The ``sampler`` attribute of a loader. It yields no indices, since the job distributes the
    records."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Return an equal share of the dataset's records, rounded up."""
        return -(-len(self._loader.dataset) // self._loader.job.world_size)

    def __iter__(self) -> Iterator[int]:
        raise UsageError(
            "loader.sampler: the job deals the records out; iterate over the loader instead"
        )

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, since every epoch has its own order."""


class Loader:
    """An iterable over the batches of a pass; see :meth:`Job.loader`.

    The loader has those attributes of a ``DataLoader`` that scripts commonly read.
    """

    def __init__(
        self, job: TrainingJob, dataset: Any, data: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.job = job
        """The job of the loader."""
        self.given = dataset
        """The dataset as the script passed it, or the data files that its paths name."""
        self.data = data
        """Arguments of :class:`~torch_edl.data.passes.Pass`, except ``records``."""
        self.options = options
        """Further arguments of the ``DataLoader``."""
        self.passes = 0
        """Number of planned iterations over the loader; 0: unknown. Jobs on parameter servers read
        the number when the first pass begins."""
        self.until = 0
        """Number of epochs of the job at the end of all planned iterations; 0 before the first
        pass."""
        # Rejects invalid arguments before the first step.
        batches = open_batches(dataset, data, 0, options)
        self.whole = batches.data
        """The first pass; its length is ``ENDLESS`` for a stream."""
        self.dataset: Any = batches.dataset
        """The dataset, or the records of the files whose paths the script passed."""
        self.batch_size: int = data["batch_size"]
        self.drop_last: bool = data["drop_last"]
        self.num_workers: int = options.get("num_workers", 0)
        self.pin_memory: bool = options.get("pin_memory", False)
        self.collate_fn: Any = batches.collate
        self.sampler = DealtRecords(self)

    @cached_property
    def first_records(self) -> dict[str, str]:
        """Digests of some records of a dataset that is read by index, and in this process: records
        may open files that the processes of a ``DataLoader`` must not inherit. Empty otherwise."""
        is_read_here = not (self.whole.files or self.num_workers)
        indexed = not isinstance(self.dataset, IterableDataset)
        return digests_of_dataset(self.dataset) if is_read_here and indexed else {}

    def __len__(self) -> int:
        """Return the number of batches of this process in a pass, if the ring does not change.

        Raises:
            TypeError: the dataset is an ``IterableDataset``.
        """
        data, rank, world = self.whole, self.job.rank, self.job.world_size
        if isinstance(self.given, IterableDataset):
            raise TypeError("an IterableDataset has no length")
        count = position = 0
        for _ in range(data.epochs):
            whole, rest = divmod(data.records, data.update_size(world))
            # A process without records in an update gets one batch nevertheless.
            count += whole * max(1, len(data.part(0, rank, world).spans))
            position += whole * data.update_size(world)
            if rest and not data.drop_last:
                count += max(1, len(data.part(position, rank, world).spans))
            position = (position // data.records + bool(rest)) * data.records
        return count

    def __iter__(self) -> Generator[Any]:
        batches = self.job.batches(self)
        _loops[batches] = self.job
        return batches
