"""The batches of a script's training loop: what stands between two of them is the step."""

from __future__ import annotations

import atexit
import inspect
import os
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, Sampler

from torch_edl.data.batches import open_batches
from torch_edl.errors import UsageError

if TYPE_CHECKING:
    from torch_edl.trainer.job import Job


# Loops over loaders that have begun, with their jobs.
_loops: weakref.WeakKeyDictionary[Generator[Any], Job] = weakref.WeakKeyDictionary()


def close_loops(job: Job | None = None) -> None:
    """Ends the loops of a job (None: of all jobs) that were left half-read: the update that such a
    loop made last counts."""
    for loop, its in list(_loops.items()):
        if job in (None, its) and inspect.getgeneratorstate(loop) != inspect.GEN_RUNNING:
            loop.close()


# While there are modules left to do it.
atexit.register(close_loops)
os.register_at_fork(after_in_child=_loops.clear)  # the loops are those of another process


class DealtRecords(Sampler[int]):
    """In the place of a ``DataLoader``'s sampler: the job deals the records out."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Records of this process in an epoch, about: those of all over the processes."""
        return -(-len(self._loader.dataset) // self._loader.job.world_size)

    def __iter__(self) -> Iterator[int]:
        raise UsageError("loader.sampler: the job deals the records out; go over the loader")

    def set_epoch(self, epoch: int) -> None:
        """Nothing: each pass has an order of its own."""


class Loader:
    """Iterable once per pass; see :meth:`Job.loader`.

    It has what scripts read of a ``DataLoader``.
    """

    def __init__(
        self, job: Job, dataset: Any, data: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.job = job
        self.given = dataset
        """As the script gave it."""
        self.data = data
        """Arguments of :class:`~torch_edl.data.order.Pass`, but for ``records``."""
        self.options = options
        """Of the ``DataLoader``."""
        self.passes = 0
        """How often the loader will be gone through; 0: the script did not say. Parameter servers
        must know before the first pass."""
        self.until = 0
        """Epochs of the job once all these passes are made, from the first pass on."""
        # What cannot work is said here rather than in the first step.
        batches = open_batches(dataset, data, 0, options)
        self.whole = batches.data
        """The first pass, as far as its length is known."""
        self.dataset: Any = batches.dataset
        """What was given; of paths of files their records."""
        self.batch_size: int = data["batch_size"]
        self.drop_last: bool = data["drop_last"]
        self.num_workers: int = options.get("num_workers", 0)
        self.pin_memory: bool = options.get("pin_memory", False)
        self.collate_fn: Any = batches.collate
        self.sampler = DealtRecords(self)

    def __len__(self) -> int:
        """Batches of this process in a pass, if the ring stays as it is."""
        data, rank, world = self.whole, self.job.rank, self.job.world_size
        if isinstance(self.given, IterableDataset):
            raise TypeError("an IterableDataset has no length")
        count = position = 0
        for _ in range(data.epochs):
            whole, rest = divmod(data.records, data.update_size(world))
            # Who has no record of an update gets a batch all the same.
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
