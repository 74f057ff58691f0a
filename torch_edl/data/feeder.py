"""Conversion of the records of a task to updates, by the user's ``feed``."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

from torch_edl.config import JobConfig
from torch_edl.data.batch import (
    MODES,
    SKIP,
    BatchError,
    Datasets,
    SampleError,
    length,
    note,
    slice_tensors,
    split,
)
from torch_edl.data.cuts import minibatch_cuts
from torch_edl.data.randomness import Generators, TaskRandom, order_of
from torch_edl.data.sources import Records, Source, open_source
from torch_edl.data.task_reader import TaskReader, named
from torch_edl.data.task_space import Shard, Task
from torch_edl.errors import DataError, EdlError, describe_error
from torch_edl.interfaces import Batch, Damaged, Minibatch, Update
from torch_edl.master_client.leases import HeldLease
from torch_edl.wire import master_pb2 as pb

T = TypeVar("T")

log = logging.getLogger(__name__)

_SHOWN = 20  # number of columns in a message

Updates = Callable[[int], Iterator[Update]]
"""Function from an offset in a task to the updates from there on."""

Watch = Callable[[HeldLease, int, int, str], AbstractContextManager[None]]
"""Function from a lease, two offsets in its task, and the name of the records between them, to a
context in which the death of this process counts against these records."""


class FeedError(EdlError):
    """The user's ``feed`` raised, or returned a value that cannot be cut into minibatches."""

    def __init__(self, message: str, index: int | None = None) -> None:
        # A DataLoader re-creates the error in another process from the message alone.
        super().__init__(message)
        self.index = index
        """Index in the minibatch of the record that cannot be read; None: unknown."""


class Feeder:
    """Reads the records of a task, calls ``feed`` and cuts its result into updates.

    Args:
        feed: the user's function.
        datasets: datasets of the model file's framework.
        sources: the user's own sources by name; any other shard is opened as a file.
        name: name of ``feed`` in the model file, for messages.
    """

    def __init__(
        self,
        config: JobConfig,
        feed: Callable[[Any, str, Any], Any],
        datasets: Datasets,
        sources: Mapping[str, Source] | None = None,
        name: str = "feed",
    ) -> None:
        self._name = name
        self._config = config
        self._feed = feed
        self._datasets = datasets
        self._own = sources or {}
        self.generators = Generators(datasets.generator)
        """Global random number generators of the process."""
        seed = config.train.seed if config.data.shuffle else None
        self.reader = TaskReader(self._open, config.records_per_task, seed)
        """Reader of the records of tasks."""
        self.minibatches: Callable[[], int] = lambda: config.train.local_steps
        """Returns the number of minibatches of the next update."""
        self.watch: Watch = lambda *_: contextlib.nullcontext()
        """See :meth:`torch_edl.master_client.leases.LeaseClient.step`."""

    def _open(self, shard: str) -> Source:
        if shard in self._own:
            return self._own[shard]
        data = self._config.data
        return open_source(shard, format=data.format, skip_damaged=data.skip_damaged)

    def records(self, lease: HeldLease) -> Records:
        """Return the records of a task; see :meth:`TaskReader.read` for errors."""
        counted = Shard(lease.shard, lease.shard_records, lease.shard_size, lease.shard_mtime_ns)
        return self.reader.read(_task(lease), counted, shuffled=_trains(lease))

    def prepare(self, lease: HeldLease) -> Updates:
        """Read a task and call ``feed``.

        Returns:
            A function from an offset in the task, at the start of an update, to the updates from
            there on.

        Raises:
            FeedError: the user's code failed; its exception is the cause.
            DataError: the records cannot be read.
        """
        size = lease.end - lease.start
        if any(step.first == 0 and step.last >= size for step in lease.skip):
            return lambda offset: self._group(iter(()), None, lease, offset, False)
        with self.watch(lease, 0, size, named(range(lease.start, lease.end), lease.shard)):
            return self._prepared(lease)

    def _prepared(self, lease: HeldLease) -> Updates:
        records = self.records(lease)
        count = len(records)
        if not self._is_whole(lease, count) or not count:  # offsets of a stream without messages
            return lambda offset: self._group(iter(()), None, lease, offset, False)
        random = self.generators.of_task(self._config.train.seed, lease.epoch, lease.task_id)
        metadata = self.reader.source(lease.shard).metadata

        def call() -> Any:
            # feed may shuffle a list in place, and may be called twice.
            given = records[:] if isinstance(records, list) else records
            return self._feed(given, MODES[lease.kind], metadata)

        with self._blamed(records):
            fed = random.feed(call, trains=_trains(lease))
        same = self._samples(fed, MODES[lease.kind]) == count
        is_by_record = same and not random.is_drawn

        def updates(offset: int) -> Iterator[Update]:
            batches, first = self._batches(fed, lease, offset, random)
            known = self._first_records(first, lease, count)
            yield from self._group(batches, known, lease, offset, is_by_record)

        return updates

    def _samples(self, fed: Any, mode: str) -> int | None:
        if self._datasets.is_dataset(fed):
            is_indexed = hasattr(fed, "__len__") and hasattr(fed, "__getitem__")
            return self._datasets.size(fed) if is_indexed else None
        with contextlib.suppress(FeedError):
            return self._length(self._split(fed, mode)[0])
        return None

    def _is_whole(self, lease: HeldLease, count: int) -> bool:
        """Return True if a task has as many records as in the previous attempt. Otherwise the
        untrained records are unknown, since offsets in a task count its records."""
        before = lease.first.records
        if not before or before == count:
            return True
        text = (
            f"the offsets {lease.start} to {lease.end - 1} had {before} messages in an earlier "
            f"attempt on this task and have {count} now: messages were removed meanwhile "
            "(retention, log compaction), so it is not known which ones were trained"
        )
        if not self._config.data.skip_damaged:
            raise DataError(
                lease.shard,
                f"{text}; keep messages longer and without compaction (cleanup.policy=delete), or "
                "leave the rest of such tasks out: --skip-damaged",
            )
        log.warning("%s: %s; the rest of the task is left out", lease.shard, text)
        return False

    def batch(self, records: Any, shard: str) -> Batch:
        """Return the minibatch that ``feed`` makes of some records, in training; raise FeedError if
        the user's code failed."""
        mode = MODES[pb.TASK_TRAIN]
        with self._blamed(records):
            fed = self._feed(records, mode, self.reader.source(shard).metadata)
            if self._datasets.is_dataset(fed):
                collated, damaged = self._collated(fed, len(records))
                return self._batch(collated, mode, damaged)
        whole = self._whole(fed, mode)
        return self.cut(whole, 0, whole.size)

    def cut(self, batch: Batch, first: int, last: int) -> Batch:
        """Return the samples ``first .. last - 1`` of a minibatch; arrays become tensors."""
        features, labels = (
            None if part is None else slice_tensors(part, first, last, self._datasets.tensor)
            for part in (batch.features, batch.labels)
        )
        # The parts of a list are arguments of the model, like those of a tuple.
        features = tuple(features) if isinstance(features, list) else features
        return Batch(features, labels, last - first)

    def _collated(self, dataset: Any, records: int) -> tuple[Any, Sequence[Damaged]]:
        tolerant = self._config.data.skip_damaged
        try:
            return self._datasets.collated(dataset, tolerant=tolerant)
        except SampleError as error:
            # Samples correspond to records only if their numbers are equal.
            is_known = error.index is not None and self._datasets.size(dataset) == records
            index = error.index if is_known else None
            raise FeedError(f"the dataset of {self._name} {error}", index) from error.__cause__

    def _group(
        self,
        batches: Iterator[Batch],
        known: pb.FirstRecords | None,
        lease: HeldLease,
        offset: int,
        is_by_record: bool,
    ) -> Iterator[Update]:
        """Yield the updates of some minibatches; ``known`` becomes a part of the first one."""
        length = lease.end - lease.start
        # Each minibatch stands for the records up to its cut, also if feed leaves records out.
        cuts = minibatch_cuts(length, self._config.data.batch_size)
        place = cuts.index(offset)
        minibatches = self.minibatches if _trains(lease) else lambda: 1
        each = minibatches()

        def update(place: int, last: int, batches: Sequence[Batch]) -> Update:
            first = cuts[place]
            # A batch whose samples are all damaged is left out.
            kept = [(n, b) for n, b in enumerate(batches) if b.size or not b.damaged]
            damaged = sum(len(batch.damaged) for batch in batches)
            for step in lease.skip:
                damaged += max(0, min(last, step.last) - max(first, step.first))
                kept = [
                    (n, b)
                    for n, b in kept
                    if cuts[place + n] >= step.last or cuts[place + n + 1] <= step.first
                ]
            return Update(
                first=first,
                last=last,
                minibatches=[
                    Minibatch(number, cuts[place + n], batch.size, batch)
                    for number, (n, batch) in enumerate(kept)
                ],
                count=len(kept),
                records=last - first,
                lease=lease,
                damaged=damaged,
                first_records=known if batches else None,
                name=partial(self._named, lease),
                watch=partial(self.watch, lease) if lease.suspect else None,
                is_by_record=is_by_record and not damaged,
            )

        taken: list[Batch] = []
        for batch in batches:
            if len(taken) == each:
                if place + each >= len(cuts) - 1:
                    raise FeedError(
                        f"{self._name} made more samples than the {length} records it was given; "
                        "it may leave records out, not add any"
                    )
                yield update(place, cuts[place + each], taken)
                place, taken, known = place + each, [], None
                each = minibatches()
            taken.append(batch)
        # The last update covers all remaining records, including those that feed left out.
        yield update(place, length, taken)

    def _named(self, lease: HeldLease, first: int, last: int) -> str:
        rows = self.reader.rows(_task(lease), first, last, shuffled=_trains(lease))
        return named(rows, lease.shard)

    def _batches(
        self, fed: Any, lease: HeldLease, offset: int, random: TaskRandom
    ) -> tuple[Iterator[Batch], Batch | None]:
        """Return the minibatches from an offset in the task on, and the first samples of the task;
        None: it has none."""
        mode, size = MODES[lease.kind], self._config.data.batch_size
        skip = minibatch_cuts(lease.end - lease.start, size).index(offset)
        if self._datasets.is_dataset(fed):
            batches = self._dataset_batches(fed, mode, skip, lease, random)
            first = next(batches, None)
            if first is not None and not skip:
                batches = itertools.chain([first], batches)
            return batches, first
        whole = self._whole(fed, mode)
        spans = itertools.pairwise(minibatch_cuts(whole.size, size)[skip:])
        return (self.cut(whole, start, end) for start, end in spans), whole

    def _whole(self, fed: Any, mode: str) -> Batch:
        """Return all samples that ``feed`` returned as tensors or arrays."""
        features, labels = self._split(fed, mode)
        count = self._length(features)
        if labels is not None and (labelled := self._length(labels)) != count:
            raise FeedError(f"{self._name} returned {count} samples with {labelled} labels")
        return Batch(features, labels, count)

    def _first_records(
        self, first: Batch | None, lease: HeldLease, records: int
    ) -> pb.FirstRecords | None:
        """Return the summary of the first records of a training task; None for other tasks."""
        if first is None or not _trains(lease):
            return None
        if not first.size or first.damaged:
            return pb.FirstRecords(records=records)
        order = order_of(first.features, first.labels)
        return pb.FirstRecords(framework=self._datasets.framework, order=order, records=records)

    def _dataset_batches(
        self, dataset: Any, mode: str, skip: int, lease: HeldLease, random: TaskRandom
    ) -> Iterator[Batch]:
        records = lease.end - lease.start
        # In prediction every record needs its output.
        tolerant = self._config.data.skip_damaged and mode != "prediction"

        def name(index: int) -> str:
            samples = self._datasets.size(dataset)
            if samples == records:
                return self._named(lease, index, index + 1)
            of_task = f"(records {lease.start:,} to {lease.end - 1:,})"
            return f"sample {index:,} of {samples:,} {of_task}"

        try:
            minibatches = self._datasets.minibatches(
                dataset, records, skip, random, tolerant=tolerant
            )
            for item, damaged in self._read(minibatches, skip, lease):
                note(damaged, name)
                yield self._batch(item, mode, damaged)
        except SampleError as error:
            where = "" if error.index is None else f" for {name(error.index)}"
            if where and mode != "prediction":
                where += f"; {SKIP}"
            raise FeedError(f"the dataset of {self._name} {error}{where}") from error.__cause__

    def _read(self, items: Iterator[T], skip: int, lease: HeldLease) -> Iterator[T]:
        """Yield the first minibatch of a dataset and those from number ``skip`` on, read apart from
        training. The iterator ends before a minibatch that is left out, since reading it may end
        this process."""
        end = lease.end - lease.start
        cuts = minibatch_cuts(end, self._config.data.batch_size)
        for number in itertools.chain([0] * bool(skip), itertools.count(skip)):
            first, last = [*cuts[number : number + 2], end, end][:2]
            if any(step.first <= first < step.last for step in lease.skip):
                return
            name = self._named(lease, first, last) if lease.suspect and first < last else ""
            with self.watch(lease, first, end, name), self.generators.apart():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _batch(self, item: Any, mode: str, damaged: Sequence[Damaged]) -> Batch:
        if item is None and damaged:
            return Batch(None, None, 0, damaged)
        features, labels = self._split(item, mode)
        return Batch(features, labels, self._length(features), damaged)

    def _split(self, fed: Any, mode: str) -> tuple[Any, Any]:
        if mode == "prediction":
            return (dict(fed) if isinstance(fed, Mapping) else fed), None
        try:
            return split(fed)
        except BatchError as error:
            raise FeedError(f"{self._name} returned {error}, or {self._datasets.name}") from None

    def _length(self, value: Any) -> int:
        try:
            return length(value)
        except BatchError as error:
            raise FeedError(f"{self._name} returned {error}") from None

    @contextmanager
    def _blamed(self, records: Records) -> Iterator[None]:
        """Return a context for user code, whose exceptions become FeedError."""
        try:
            yield
        except FeedError:
            raise
        except BaseException as error:  # such as CancelledError, or a panic of a library in Rust
            if is_interrupt(error):
                raise
            said = describe_error(error) + _what_records_are(records, error)
            raise FeedError(f"{self._name} raised {said}") from error


def is_interrupt(error: BaseException) -> bool:
    """Return True for Ctrl-C: a KeyboardInterrupt in the main thread. In any other thread, it was
    raised by user code."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt)


def _trains(lease: HeldLease) -> bool:
    return lease.kind == pb.TASK_TRAIN


def _task(lease: HeldLease) -> Task:
    return Task(lease.task_id, lease.epoch, lease.shard, lease.start, lease.end)


def _what_records_are(records: Records, error: BaseException) -> str:
    """Return a hint on the type of the records, if the error may come from a ``feed`` that expects
    another type or another column; empty otherwise."""
    if not isinstance(error, KeyError | TypeError | AttributeError | IndexError | ValueError):
        return ""
    if isinstance(records, list):
        wrong = isinstance(error, TypeError | AttributeError)
        return " (records is a list of bytes)" if wrong else ""
    names = [repr(name) for name in records.column_names]
    shown = ", ".join(names[:_SHOWN]) + f", and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    return f" (records is a pyarrow.Table with the columns {shown})"
