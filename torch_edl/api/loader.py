"""The batches of a script's training loop; the code between two batches is the step."""

from __future__ import annotations

import atexit
import inspect
import os
import weakref
from collections.abc import Generator, Iterator
from typing import Any, Protocol

from torch.utils.data import IterableDataset, Sampler

from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import open_batches


class TrainingJob(Protocol):
    """What a loader needs of its job."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def batches(self, loader: Loader) -> Generator[Any]:
        """The batches of one pass."""
        ...


# Loops over loaders that have begun, and the job of each.
_loops: weakref.WeakKeyDictionary[Generator[Any], TrainingJob] = weakref.WeakKeyDictionary()


def close_loops(job: TrainingJob | None = None) -> None:
    """Closes the loops of a job (None: of all jobs) that their script has left half-read; the last
    update of such a loop counts."""
    for loop, its in list(_loops.items()):
        if job in (None, its) and inspect.getgeneratorstate(loop) != inspect.GEN_RUNNING:
            loop.close()


def is_in_loop(job: TrainingJob) -> bool:
    """Whether the body of a loop over a loader of the job runs now."""
    return any(
        its is job and inspect.getgeneratorstate(loop) == inspect.GEN_SUSPENDED
        for loop, its in _loops.items()
    )


# Before the interpreter clears the modules.
atexit.register(close_loops)
os.register_at_fork(after_in_child=_loops.clear)  # they belong to the parent


class DealtRecords(Sampler[int]):
    """Takes the place of a ``DataLoader``'s sampler; the job deals the records out."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """About the number of records of this process in an epoch: an equal share."""
        return -(-len(self._loader.dataset) // self._loader.job.world_size)

    def __iter__(self) -> Iterator[int]:
        raise UsageError(
            "loader.sampler: the job deals the records out; iterate over the loader instead"
        )

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: each pass has an order of its own."""


class Loader:
    """Gives the batches of a pass at each iteration; see :meth:`Job.loader`.

    The loader has the attributes of a ``DataLoader`` that scripts read.
    """

    def __init__(
        self, job: TrainingJob, dataset: Any, data: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.job = job
        self.given = dataset
        """The dataset as the script passed it."""
        self.data = data
        """Arguments of :class:`~torch_edl.pytorch.order.Pass`, but for ``records``."""
        self.options = options
        """Further arguments of the ``DataLoader``."""
        self.passes = 0
        """Number of iterations over the loader that will come; 0: unknown. Parameter servers need
        the number before the first pass."""
        self.until = 0
        """Number of epochs of the job after all these passes; known from the first pass on."""
        # Invalid arguments are rejected here rather than in the first step.
        batches = open_batches(dataset, data, 0, options)
        self.whole = batches.data
        """The first pass, as far as its length is known."""
        self.dataset: Any = batches.dataset
        """The dataset, or the records of the files whose paths the script passed."""
        self.batch_size: int = data["batch_size"]
        self.drop_last: bool = data["drop_last"]
        self.num_workers: int = options.get("num_workers", 0)
        self.pin_memory: bool = options.get("pin_memory", False)
        self.collate_fn: Any = batches.collate
        self.sampler = DealtRecords(self)

    def __len__(self) -> int:
        """Number of batches of this process in a pass, if the ring does not change."""
        data, rank, world = self.whole, self.job.rank, self.job.world_size
        if isinstance(self.given, IterableDataset):
            raise TypeError("an IterableDataset has no length")
        count = position = 0
        for _ in range(data.epochs):
            whole, rest = divmod(data.records, data.update_size(world))
            # A process without a record of an update gets a batch all the same.
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
