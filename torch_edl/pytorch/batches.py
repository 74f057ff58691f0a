"""Batches of a dataset by position, read by a plain DataLoader."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from torch_edl.data.passes import Pass, Span
from torch_edl.data.resuming import digest
from torch_edl.data.shuffle import Permutation
from torch_edl.data.sources import Source, as_table, expand, of_each, open_source, parts, take
from torch_edl.data.task_reader import TaskReader, TaskRecords, named
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.interfaces import ENDLESS
from torch_edl.pytorch.first_records import FIRST, digests, is_random
from torch_edl.pytorch.sample_digest import sample_digest

# Number of minibatches in a block of a shuffled file; see TaskReader.
_BATCHES_PER_TASK = 32
_SHUFFLED_AT_ONCE = 1 << 14  # indices that are computed at once, in 3 ms


class Order:
    """Maps positions of a pass to indices of the dataset.

    Args:
        number: number of the pass in the job; each pass has its own order.
    """

    def __init__(self, data: Pass, number: int) -> None:
        self._data = data
        self._number = number
        self._shuffled = (0, np.empty(0, np.int64))  # position in the pass, indices from there on

    def indices(self, span: Span) -> list[int]:
        """Return the indices at the positions of a span, which must lie in one epoch."""
        first, last = span
        epoch, start = divmod(first, self._data.records)
        if not self._data.shuffle:
            return list(range(start, start + last - first))
        at, shuffled = self._shuffled
        if not at <= first <= last <= at + len(shuffled):
            order = Permutation(self._data.records, self._data.seed, self._number, epoch)
            end = min(self._data.records, start + max(_SHUFFLED_AT_ONCE, last - first))
            at, shuffled = self._shuffled = first, order.span(start, end)
        indices: list[int] = shuffled[first - at : last - at].tolist()
        return indices


# Options of a DataLoader that set the order of records, which the job determines.
_REFUSED = {
    "sampler": "the job deals the records out; leave it out",
    "batch_sampler": "the job deals the records out; use batch_size",
}


class Batches:
    """The minibatches of one member, read by a DataLoader.

    The DataLoader prefetches while the ring stays the same. When the ring changes or a step is
    repeated, a new DataLoader starts at that position.

    Args:
        dataset: a dataset with ``__len__`` and ``__getitem__`` (or ``__getitems__``).
        data: the pass.
        indices: function from positions within one epoch to indices of the dataset.
        options: options of the DataLoader.

    Raises:
        UsageError: an option sets the order of records.
    """

    def __init__(
        self,
        dataset: Any,
        data: Pass,
        indices: Callable[[Span], list[Any]],
        options: Mapping[str, Any],
    ) -> None:
        for name, why in _REFUSED.items():
            if options.get(name) is not None:
                raise UsageError(f"{name}: {why}")
        self.data = data
        """The pass."""
        self.dataset = dataset
        """The dataset, or the records of data files."""
        self.collate: Any = options.get("collate_fn") or default_collate
        """Function from a list of samples to a batch."""
        self._indices = indices
        self._options = dict(options)
        self._running: Iterator[Any] | None = None
        self._ahead: deque[Span] = deque()
        self._place = (0, 0)

    def known_end(self, start: int, world: int) -> Pass:
        """Return the pass, whose length is always known here."""
        return self.data

    def take(self, span: Span, start: int, rank: int, world: int) -> Any:
        """Return the minibatch at ``span``, which belongs to the update at ``start``."""
        if self._place == (rank, world) and self._running is not None:
            batch = next(self._running, None)
            if self._ahead and self._ahead.popleft() == span:
                return batch
        # The ring has changed, or a step is repeated.
        self._place = (rank, world)
        self._ahead.clear()
        self._running = iter(self._loader(self._spans(start, span, rank, world)))
        batch = next(self._running)
        self._ahead.popleft()
        return batch

    def of(self, spans: Sequence[Span]) -> Iterator[Any]:
        """Return an iterator over the minibatches at some spans."""
        return iter(self._loader(self._indices(span) for span in spans))

    def sample(self, *spans: Span) -> Any:
        """Return one minibatch of the records at all ``spans``, read in this process and outside
        the usual order."""
        indices = [index for span in spans for index in self._indices(span)]
        return self.collate(samples(self.dataset, indices))

    def names(self, spans: Sequence[Span]) -> str:
        """Return the name of the records at some spans, for messages; empty without records."""
        indices = [index for span in spans for index in self._indices(span)]
        if not indices:
            return ""
        if isinstance(self.dataset, TaskRecords):
            return self.dataset.names(indices)
        return named(indices, "the dataset")

    def close(self) -> None:
        """Stop the processes of the DataLoader."""
        self._running = None
        self._ahead.clear()

    def _spans(self, start: int, first: Span, rank: int, world: int) -> Iterator[list[Any]]:
        """Yield the indices of all minibatches from ``first`` on, if the ring does not change."""
        for span in self.data.spans(start, first, rank, world):
            self._ahead.append(span)
            yield self._indices(span)

    def _loader(self, indices: Iterator[list[Any]]) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_sampler=indices, **self._options)


class StreamBatches:
    """The minibatches of one member from an ``IterableDataset``.

    Every member reads the whole stream and uses its own part, so the stream must be the same in all
    members. A job that resumes from a checkpoint first skips the records before its position.

    Args:
        epochs: number of iterations over the dataset.
        options: options of the DataLoader; only ``collate_fn`` is supported.

    Raises:
        UsageError: an option is not supported, or the pass is shuffled.
    """

    def __init__(
        self, dataset: IterableDataset[Any], data: Pass, epochs: int, options: Mapping[str, Any]
    ) -> None:
        unknown = set(options) - {"collate_fn"}
        if unknown:
            raise UsageError(
                f"{', '.join(sorted(unknown))}: an IterableDataset is read in the training "
                "process; only collate_fn is taken (use a dataset with __getitem__ for more)"
            )
        if data.shuffle:
            raise UsageError("shuffle=True: an IterableDataset has the order of its own stream")
        self.data = data
        self.dataset = dataset
        self.collate: Any = options.get("collate_fn") or default_collate
        self._stream = itertools.chain.from_iterable(itertools.repeat(dataset, epochs))
        self._records: deque[Any] = deque()
        self._first = 0  # position of the first record in self._records
        self.first_records: dict[str, str] = {}
        """Digests of the first records; empty before they were read, or if this drew random
        numbers, so that they cannot be compared."""

    def known_end(self, start: int, world: int) -> Pass:
        """Read the records of the update at ``start``, and return the pass with its length if the
        stream ends there.

        Raises:
            UsageError: the stream has no records.
        """
        wanted = start + self.data.update_size(world)
        if not (self._first or self._records):
            first: list[Any] = []
            drawn = is_random(lambda: first.extend(itertools.islice(self._stream, FIRST)))
            self._records.extend(first)
            self.first_records = {} if drawn else digests(first)
        while self._first < start and self._records:
            self._records.popleft()
            self._first += 1
        if not self._records:
            skipped = itertools.islice(self._stream, start - self._first)
            self._first += sum(1 for _ in skipped)
        # More records than wanted are present if they were read for a larger ring.
        missing = max(0, wanted - self._first - len(self._records))
        self._records.extend(itertools.islice(self._stream, missing))
        end = self._first + len(self._records)
        if not end:
            raise UsageError("the dataset is empty")
        if end < wanted:
            return dataclasses.replace(self.data, records=end)
        return self.data

    def take(self, span: Span, start: int, rank: int, world: int) -> Any:
        """Return the minibatch at ``span``."""
        return self.sample(span)

    def sample(self, *spans: Span) -> Any:
        """Return a minibatch of the records at a single span, as far as they were read; at least
        one record."""
        (span,) = spans
        first = min(span[0] - self._first, max(0, len(self._records) - 1))
        last = max(first + 1, span[1] - self._first)
        return self.collate(list(itertools.islice(self._records, first, last)))

    def names(self, spans: Sequence[Span]) -> str:
        """Return the name of the records at some spans, for messages; empty without records."""
        positions = [at for span in spans for at in range(*span)]
        return named(positions, "the stream") if positions else ""

    def close(self) -> None:
        """Discard all records that were read."""
        self._records.clear()


def open_batches(
    dataset: Any, data: dict[str, Any], number: int, options: Mapping[str, Any]
) -> Batches | StreamBatches:
    """Return the batches of a dataset of any kind.

    Args:
        dataset: a dataset, a table, or paths of data files.
        data: arguments of :class:`~torch_edl.data.passes.Pass`, except ``records``.
        number: number of the pass in the job.
        options: options of the DataLoader.

    Raises:
        UsageError: the dataset can neither be indexed nor iterated, or has no records; or an option
            is not supported.
    """
    # An option of 0, False or None is a default; a stream rejects most other options.
    options = {name: value for name, value in options.items() if value}
    if is_paths(dataset):
        return _open_files(dataset, data, number, options)
    dataset = as_rows(dataset)
    if isinstance(dataset, RowDataset):
        options = {"collate_fn": collate_records, **options}
    if isinstance(dataset, IterableDataset):
        # The length is unknown until the end; epochs follow each other without a boundary.
        stream = Pass(records=ENDLESS, **{**data, "epochs": 1})
        return StreamBatches(dataset, stream, data["epochs"], options)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"dataset {type(dataset).__name__}: expected __len__ and __getitem__, an "
            "IterableDataset, or the path of data files"
        )
    if not len(dataset):
        raise UsageError("the dataset is empty")
    whole = Pass(records=len(dataset), samples=sample_digest(dataset), **data)
    return Batches(dataset, whole, Order(whole, number).indices, options)


class RowDataset:
    """The rows of a ``pyarrow.Table`` as a dataset."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Any:
        return take(self._table, indices)


def as_rows(dataset: Any) -> Any:
    """Return a pandas data frame or a ``pyarrow.Table`` as a dataset; any other dataset unchanged.

    Raises:
        UsageError: a column has values of several types.
    """
    table = as_table(dataset)
    return RowDataset(table) if type(table).__module__ == "pyarrow.lib" else dataset


def samples(dataset: Any, indices: list[Any]) -> Any:
    """Return some samples of a dataset in the form of a ``collate_fn``'s argument."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def is_paths(dataset: Any) -> bool:
    """Return True if a dataset is given by one path, or by a list or tuple of paths."""
    several = dataset if isinstance(dataset, list | tuple) else [dataset]
    return all(isinstance(path, str | os.PathLike) for path in several)


def list_files(paths: Any) -> list[str]:
    """Return the data files and URLs that one path or several name now.

    Raises:
        UsageError: a file does not exist.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    try:
        return expand([os.fspath(path) for path in named])
    except UsageError as error:
        if named is not paths:
            raise
        raise UsageError(
            f"{str(error)[-300:]} (a list of str names data files; texts that are records are "
            "given by a dataset, such as [{'text': text} for text in texts])"
        ) from None


def open_sources(paths: Any) -> list[Source]:
    """Open the sources of one path or several.

    Raises:
        UsageError: a file does not exist, or has an unknown format.
    """
    return of_each(parts(list_files(paths)), open_source)


def _open_files(
    paths: Any, data: dict[str, Any], number: int, options: Mapping[str, Any]
) -> Batches:
    sources = open_sources(paths)
    by_name = {source.name: source for source in sources}
    seed = data["seed"] + number
    shards = [Shard.counted(source) for source in sources]
    space = TaskSpace(
        shards,
        _BATCHES_PER_TASK * data["batch_size"],
        epochs=data["epochs"],
        seed=seed,
        shuffle=data["shuffle"],
        batch_size=data["batch_size"],
    )
    if not space.total_records:
        raise UsageError(f"{paths}: the files hold no records")
    reader = TaskReader(
        by_name.__getitem__, space.records_per_task, seed if data["shuffle"] else None
    )
    return Batches(
        TaskRecords(space, reader),
        Pass(records=space.total_records // data["epochs"], files=digest(shards), **data),
        space.pieces,
        {"collate_fn": collate_records, **options},
    )


def collate_records(records: Any) -> Any:
    """Convert a table to a dict of numeric columns as tensors and other columns as lists; return a
    list of ``bytes`` unchanged."""
    if isinstance(records, list):
        return records
    columns = {}
    for name, column in zip(records.column_names, records.columns, strict=True):
        values = column.to_numpy()
        numeric = values.dtype.kind in "biuf"
        columns[name] = torch.from_numpy(values.copy()) if numeric else column.to_pylist()
    return columns
