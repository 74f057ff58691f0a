"""From the records of a task to the updates that ``feed`` makes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from torch_edl.config import JobConfig
from torch_edl.data.batch import (
    Batch,
    BatchError,
    Minibatch,
    Update,
    length,
    slice_tensors,
    split,
)
from torch_edl.data.samples import SKIP, Damaged, SampleError, Sound, minibatches, note, read_all
from torch_edl.data.sources import Source, open_source
from torch_edl.data.task_records import check_unchanged, read_task, record_of
from torch_edl.data.task_space import Shard, Task
from torch_edl.errors import EdlError, describe_error
from torch_edl.master_client.leases import Lease
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

_SHOWN = 20  # columns in a message

MODES = {
    pb.TASK_TRAIN: "training",
    pb.TASK_EVALUATE: "evaluation",
    pb.TASK_PREDICT: "prediction",
}


Updates = Callable[[int], Iterator[Update]]
"""The updates of a task from an offset on."""


class FeedError(EdlError):
    """The user's ``feed`` raised, or what it returned cannot be cut into minibatches."""

    def __init__(self, message: str, lease: Lease | None = None, index: int | None = None) -> None:
        # A DataLoader makes it again in another process, with the message alone.
        super().__init__(message)
        self.lease = lease
        self.index = index
        """Of a minibatch: the record that cannot be read."""


class Feeder:
    """Reads the records of a lease and cuts what ``feed`` makes of them into updates.

    Args:
        feed: the user's function.
        open_shard: from the name of a shard to its source.
    """

    def __init__(
        self,
        config: JobConfig,
        feed: Callable[[Any, str, Any], Any],
        open_shard: Callable[[str], Source] | None = None,
    ) -> None:
        self._config = config
        self._feed = feed
        self._open = open_shard or self._open_file
        self._sources: dict[str, Source] = {}

    def prepare(self, lease: Lease) -> Updates:
        """Reads a task and calls ``feed``; the updates from the first record of any of them on.

        Raises:
            FeedError: the user's code failed; its exception is the cause.
            DataError: the records cannot be read.
        """
        records = self._records(lease)
        mode = MODES[lease.kind]
        try:
            fed = self._feed(records, mode, self.source(lease.shard).metadata)
        except (Exception, SystemExit) as error:
            said = describe_error(error) + _what_records_are(records, error)
            raise FeedError(f"feed raised {said}", lease) from error

        def updates(offset: int) -> Iterator[Update]:
            return self._group(self._batches(fed, lease, mode, offset), lease, offset)

        return updates

    def batch(self, records: Any, shard: str) -> Batch:
        """What ``feed`` makes of the records of one minibatch, in training.

        Raises:
            FeedError: the user's code failed; its exception is the cause.
        """
        lease = Lease(kind=pb.TASK_TRAIN, shard=shard)
        mode = MODES[pb.TASK_TRAIN]
        damaged: Sequence[Damaged] = ()
        known = False  # which record a sample is
        try:
            fed = self._feed(records, mode, self.source(shard).metadata)
            if isinstance(fed, Dataset):
                collate = getattr(fed, "collate_fn", None) or default_collate
                if isinstance(fed, IterableDataset):
                    fed = collate(list(fed))
                else:
                    known = len(fed) == len(records)  # type: ignore[arg-type]
                    read = read_all(fed, tolerant=self._config.data.skip_damaged)
                    fed, damaged = Sound(collate)(read)
        except SampleError as error:
            index = error.index if known else None
            raise FeedError(f"the dataset of feed {error}", index=index) from error.__cause__
        except (Exception, SystemExit) as error:
            said = describe_error(error) + _what_records_are(records, error)
            raise FeedError(f"feed raised {said}", lease) from error
        return _batch(fed, mode, lease, damaged)

    def _group(self, batches: Iterator[Batch], lease: Lease, offset: int) -> Iterator[Update]:
        length, size = lease.end - lease.start, self._config.data.batch_size
        each = self._config.train.local_steps if lease.kind == pb.TASK_TRAIN else 1
        taken: list[Batch] = []
        for batch in batches:
            if len(taken) == each:
                end = offset + each * size
                if end >= length:
                    raise FeedError(
                        f"feed made more samples than the {length} records it was given; "
                        "it may leave records out, not add any",
                        lease,
                    )
                yield _update(lease, offset, end, size, taken)
                offset, taken = end, []
            taken.append(batch)
        # The last update answers for the rest of the records, also those that feed left out.
        yield _update(lease, offset, length, size, taken)

    def _records(self, lease: Lease) -> Any:
        source = self.source(lease.shard)
        counted = lease.shard_records, lease.shard_size, lease.shard_mtime_ns
        check_unchanged(source, Shard(lease.shard, *counted))
        each, seed = self._config.records_per_task, self._seed(lease)
        return read_task(source, _task(lease), each, seed)

    def _seed(self, lease: Lease) -> int | None:
        shuffle = lease.kind == pb.TASK_TRAIN and self._config.data.shuffle
        return self._config.train.seed if shuffle else None

    def _name(self, lease: Lease, samples: int, index: int) -> str:
        """What a person calls a sample of the dataset that ``feed`` made of a task."""
        if samples != lease.end - lease.start:
            return f"sample {index:,} of {samples:,} (records {lease.start:,} to {lease.end - 1:,})"
        count, each = self.source(lease.shard).count, self._config.records_per_task
        record = record_of(count, _task(lease), each, self._seed(lease), index)
        return f"record {record:,} of {lease.shard}"

    def source(self, shard: str) -> Source:
        """The source of a shard, opened once."""
        if shard not in self._sources:
            self._sources[shard] = self._open(shard)
        return self._sources[shard]

    def _open_file(self, path: str) -> Source:
        data = self._config.data
        return open_source(path, format=data.format, skip_damaged=data.skip_damaged)

    def _batches(self, fed: Any, lease: Lease, mode: str, offset: int) -> Iterator[Batch]:
        size = self._config.data.batch_size
        if isinstance(fed, Dataset):
            return self._dataset_batches(fed, mode, offset // size, lease)
        features, labels = _split(fed, mode, lease)
        count = _length(features, lease)
        if labels is not None and _length(labels, lease) != count:
            raise FeedError(
                f"feed returned {count} samples with {_length(labels, lease)} labels", lease
            )
        return _sliced(features, labels, count, size, offset)

    def _dataset_batches(
        self, dataset: Dataset[Any], mode: str, skip: int, lease: Lease
    ) -> Iterator[Batch]:
        data = self._config.data

        def name(index: int) -> str:
            return self._name(lease, len(dataset), index)  # type: ignore[arg-type]

        try:
            for item, damaged in minibatches(
                dataset,
                skip=skip,
                # Predictions must stay in line with the records.
                tolerant=data.skip_damaged and mode != "prediction",
                batch_size=data.batch_size,
                num_workers=data.loader_workers,
                pin_memory=data.pin_memory,
                collate_fn=getattr(dataset, "collate_fn", None),
            ):
                note(damaged, name)
                yield _batch(item, mode, lease, damaged)
        except SampleError as error:
            where = "" if error.index is None else f" for {name(error.index)}"
            if where and mode != "prediction":
                where += f"; {SKIP}"
            raise FeedError(f"the dataset of feed {error}{where}", lease) from error.__cause__


def _batch(item: Any, mode: str, lease: Lease, damaged: Sequence[Damaged]) -> Batch:
    """A collated minibatch, of which the ``damaged`` samples were left out."""
    if item is None and damaged:
        return Batch(None, None, 0, damaged)
    features, labels = _split(item, mode, lease)
    return Batch(features, labels, _length(features, lease), damaged)


def _update(lease: Lease, first: int, last: int, size: int, batches: Sequence[Batch]) -> Update:
    """Minibatches of which nothing is left are none."""
    kept = [(n, b) for n, b in enumerate(batches) if b.size or not b.damaged]
    return Update(
        first=first,
        last=last,
        minibatches=[
            Minibatch(number, min(first + n * size, last), batch.size, batch)
            for number, (n, batch) in enumerate(kept)
        ],
        count=len(kept),
        records=last - first,
        lease=lease,
        damaged=sum(len(batch.damaged) for batch in batches),
    )


def _task(lease: Lease) -> Task:
    return Task(lease.task_id, lease.epoch, lease.shard, lease.start, lease.end)


def _what_records_are(records: Any, error: BaseException) -> str:
    """For who takes them for something else, or asks for a column that is not there."""
    if not isinstance(error, KeyError | TypeError | AttributeError | IndexError | ValueError):
        return ""
    if isinstance(records, list):
        wrong = isinstance(error, TypeError | AttributeError)
        return " (records is a list of bytes)" if wrong else ""
    names = [repr(name) for name in records.column_names]
    shown = ", ".join(names[:_SHOWN]) + f", and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    return f" (records is a pyarrow.Table with the columns {shown})"


def _split(fed: Any, mode: str, lease: Lease) -> tuple[Any, Any]:
    """Features and labels of what ``feed`` (or a collated batch of its dataset) gave."""
    if mode == "prediction":
        return (dict(fed) if isinstance(fed, Mapping) else fed), None
    try:
        return split(fed)
    except BatchError as error:
        raise FeedError(f"feed returned {error}, or a torch Dataset", lease) from None


def _length(value: Any, lease: Lease) -> int:
    try:
        return length(value)
    except BatchError as error:
        raise FeedError(f"feed returned {error}", lease) from None


def _sliced(features: Any, labels: Any, count: int, size: int, offset: int) -> Iterator[Batch]:
    for start in range(offset, count, size):
        end = min(start + size, count)
        yield Batch(
            slice_tensors(features, start, end),
            None if labels is None else slice_tensors(labels, start, end),
            end - start,
        )
