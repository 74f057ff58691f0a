"""Batches of a dataset by position: a plain DataLoader that is told which records come next."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from torch_edl.data.passes import Pass, Span
from torch_edl.data.sources import Source, as_table, expand, of_each, open_source, parts, take
from torch_edl.data.task_reader import TaskReader
from torch_edl.data.task_records import TaskRecords
from torch_edl.data.task_space import Shard, TaskSpace, digest
from torch_edl.errors import UsageError
from torch_edl.interfaces import ENDLESS
from torch_edl.pytorch.order import Order
from torch_edl.pytorch.sample_digest import sample_digest

# What a DataLoader decides by its own order; ours is the job's.
_REFUSED = {
    "sampler": "the job deals the records out; leave it out",
    "batch_sampler": "the job deals the records out; use batch_size",
}
# Files are shuffled in blocks of so many minibatches, and within each: see TaskReader.
_BATCHES_PER_TASK = 32


class Batches:
    """The minibatches of one member, as its DataLoader makes them.

    As long as the ring stays the same the loader runs ahead as far as its options say. When it
    changes, or a step is taken again, it is made anew from there.

    Args:
        dataset: with ``__len__`` and ``__getitem__`` (or ``__getitems__``).
        indices: from positions of one epoch to what the dataset is indexed by.
        options: of the DataLoader.
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
        self.dataset = dataset
        self.collate: Any = options.get("collate_fn") or default_collate
        self._indices = indices
        self._options = dict(options)
        self._running: Iterator[Any] | None = None
        self._ahead: deque[Span] = deque()
        self._place = (0, 0)

    def known_end(self, start: int, world: int) -> Pass:
        """The pass, as far as its length is known at ``start``."""
        return self.data

    def take(self, span: Span, start: int, rank: int, world: int) -> Any:
        """The minibatch at ``span``, of the update at ``start``."""
        if self._place == (rank, world) and self._running is not None:
            batch = next(self._running, None)
            if self._ahead and self._ahead.popleft() == span:
                return batch
        # Another ring, or a step that is taken again.
        self._place = (rank, world)
        self._ahead.clear()
        self._running = iter(self._loader(self._spans(start, span, rank, world)))
        batch = next(self._running)
        self._ahead.popleft()
        return batch

    def of(self, spans: Sequence[Span]) -> Iterator[Any]:
        """The minibatches at some spans, one after the other."""
        return iter(self._loader(self._indices(span) for span in spans))

    def sample(self, span: Span) -> Any:
        """A minibatch beside the order, for a step that does not count."""
        return self.collate(samples(self.dataset, self._indices(span)))

    def close(self) -> None:
        """Ends the loader's processes."""
        self._running = None
        self._ahead.clear()

    def _spans(self, start: int, first: Span, rank: int, world: int) -> Iterator[list[Any]]:
        """The indices of this and all later minibatches, should nothing change."""
        for span in self.data.spans(start, first, rank, world):
            self._ahead.append(span)
            yield self._indices(span)

    def _loader(self, indices: Iterator[list[Any]]) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_sampler=indices, **self._options)


class StreamBatches:
    """The minibatches of one member, of a dataset that can only be iterated.

    Every member reads the whole stream and takes its part, so the stream must be the same in all
    of them; a job that continues from a checkpoint reads up to there first.
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
        self._first = 0  # position of the first record that is kept

    def known_end(self, start: int, world: int) -> Pass:
        """Reads one update ahead: is this the end?

        Raises:
            UsageError: the stream has no records.
        """
        wanted = start + self.data.update_size(world)
        while self._first < start and self._records:
            self._records.popleft()
            self._first += 1
        if not self._records:
            skipped = itertools.islice(self._stream, start - self._first)
            self._first += sum(1 for _ in skipped)
        # Less than nothing is missing where more were read for a larger ring.
        missing = max(0, wanted - self._first - len(self._records))
        self._records.extend(itertools.islice(self._stream, missing))
        end = self._first + len(self._records)
        if not end:
            raise UsageError("the dataset is empty")
        if end < wanted:
            return dataclasses.replace(self.data, records=end)
        return self.data

    def take(self, span: Span, start: int, rank: int, world: int) -> Any:
        """The minibatch at ``span``."""
        return self.sample(span)

    def sample(self, span: Span) -> Any:
        """The records at ``span``, as far as they are there."""
        first = min(span[0] - self._first, max(0, len(self._records) - 1))
        last = max(first + 1, span[1] - self._first)
        return self.collate(list(itertools.islice(self._records, first, last)))

    def close(self) -> None:
        """Forgets what was read."""
        self._records.clear()


def open_batches(
    dataset: Any, data: dict[str, Any], number: int, options: Mapping[str, Any]
) -> Batches | StreamBatches:
    """The batches of a dataset of any kind.

    Args:
        data: arguments of :class:`~torch_edl.pytorch.order.Pass`, but for ``records``.
        number: of the pass in the job.

    Raises:
        UsageError: it can neither be indexed nor iterated, or has no records.
    """
    # What is 0, False or None is the default of a DataLoader; a stream takes few options.
    options = {name: value for name, value in options.items() if value}
    if is_paths(dataset):
        return _open_files(dataset, data, number, options)
    dataset = as_rows(dataset)
    if isinstance(dataset, Rows):
        options = {"collate_fn": collate_records, **options}
    if isinstance(dataset, IterableDataset):
        # The length shows when the end is there; epochs follow each other without a border.
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


class Rows:
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
    """The rows of a data frame of pandas, or of a ``pyarrow.Table``; another dataset as it is.

    Raises:
        UsageError: a column has values of several types.
    """
    table = as_table(dataset)
    return Rows(table) if type(table).__module__ == "pyarrow.lib" else dataset


def samples(dataset: Any, indices: list[Any]) -> Any:
    """What a ``collate_fn`` gets of some samples of a dataset."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def is_paths(dataset: Any) -> bool:
    """Whether a script gives data files, by one path or by several."""
    several = dataset if isinstance(dataset, list | tuple) else [dataset]
    return all(isinstance(path, str | os.PathLike) for path in several)


def open_sources(paths: Any) -> list[Source]:
    """The sources that a path, or several, name.

    Raises:
        UsageError: there is no such file, or it is of no known kind.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    try:
        files = expand([os.fspath(path) for path in named])
    except UsageError as error:
        if named is not paths:
            raise
        raise UsageError(
            f"{str(error)[-300:]} (a list of str names data files; texts that are records are "
            "given by a dataset, such as [{'text': text} for text in texts])"
        ) from None
    return of_each(parts(files), open_source)


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
    """Tensors by column for the rows of a table, texts as lists; records of bytes as they are."""
    if isinstance(records, list):
        return records
    columns = {}
    for name, column in zip(records.column_names, records.columns, strict=True):
        values = column.to_numpy()
        numeric = values.dtype.kind in "biuf"
        columns[name] = torch.from_numpy(values.copy()) if numeric else column.to_pylist()
    return columns
