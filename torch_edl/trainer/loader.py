"""The batches of a script's training loop: what stands between two of them is the step."""

from __future__ import annotations

import atexit
import inspect
import os
import weakref
from collections.abc import Generator, Iterator
from typing import Any, Protocol

from torch.utils.data import IterableDataset, Sampler

from torch_edl.data.batches import open_batches
from torch_edl.errors import UsageError


class Reading:
    """The loops over loaders that have begun."""

    def __init__(self) -> None:
        self._loops: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()

    def add(self, loop: Generator[Any]) -> None:
        """One begins."""
        self._loops.add(loop)

    def close(self) -> None:
        """Ends those that were left half-read: the update that such a one made last counts."""
        for loop in list(self._loops):
            if inspect.getgeneratorstate(loop) != inspect.GEN_RUNNING:
                loop.close()

    def forget(self) -> None:
        """They are another process's: this one was forked."""
        self._loops.clear()


# While there are modules left to do it.
_of_all_jobs = Reading()
atexit.register(_of_all_jobs.close)
os.register_at_fork(after_in_child=_of_all_jobs.forget)


class DealtRecords(Sampler[int]):
    """In the place of a ``DataLoader``'s sampler: the job deals the records out."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Records of this process in an epoch, about: those of all over the processes."""
        return -(-len(self._loader.dataset) // self._loader.world_size)

    def __iter__(self) -> Iterator[int]:
        raise UsageError("loader.sampler: the job deals the records out; go over the loader")

    def set_epoch(self, epoch: int) -> None:
        """Nothing: each pass has an order of its own."""


class Dealer(Protocol):
    """What a loader asks of its job."""

    @property
    def rank(self) -> int:
        """Number of this process."""
        ...

    @property
    def world_size(self) -> int:
        """Processes that share the records now."""
        ...

    @property
    def epochs_begun(self) -> int:
        """Epochs of all loops over loaders that this process went into."""
        ...

    reading: Reading

    def batches(self, loader: Loader) -> Generator[Any]:
        """The batches of one pass over a loader."""
        ...


class Loader:
    """Iterable once per pass; see :meth:`Job.loader`.

    It has what scripts read of a ``DataLoader``.
    """

    def __init__(
        self, dealer: Dealer, dataset: Any, data: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._dealer = dealer
        self.given = dataset
        """As the script gave it."""
        self.data = data
        """Arguments of :class:`~torch_edl.data.order.Pass`, but for ``records``."""
        self.options = options
        """Of the ``DataLoader``."""
        self.passes = 0
        """How often the loader will be gone through; 0: the script did not say."""
        self.epochs_to_come = 0
        """Of the job, once all these passes are made; 0: the script did not say."""
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

    @property
    def world_size(self) -> int:
        """Processes that share the records now."""
        return self._dealer.world_size

    def repeat(self, passes: int) -> None:
        """It will be gone through so often; parameter servers must know before the first time."""
        self.passes = passes
        self.epochs_to_come = self._dealer.epochs_begun + passes * self.data["epochs"]

    def __len__(self) -> int:
        """Batches of this process in a pass, if the ring stays as it is."""
        data, world = self.whole, self._dealer.world_size
        if isinstance(self.given, IterableDataset):
            raise TypeError("an IterableDataset has no length")
        count = position = 0
        for _ in range(data.epochs):
            whole, rest = divmod(data.records, data.update_size(world))
            # Who has no record of an update gets a batch all the same.
            count += whole * max(1, len(data.part(0, self._dealer.rank, world).spans))
            position += whole * data.update_size(world)
            if rest and not data.drop_last:
                count += max(1, len(data.part(position, self._dealer.rank, world).spans))
            position = (position // data.records + bool(rest)) * data.records
        return count

    def __iter__(self) -> Generator[Any]:
        batches = self._dealer.batches(self)
        _of_all_jobs.add(batches)
        self._dealer.reading.add(batches)
        return batches
