"""The tasks of a pass over data, as a pure function of their number; nothing is stored per task."""

from __future__ import annotations

import bisect
import datetime
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch_edl.data.cuts import minibatch_cuts, task_end, tasks_of
from torch_edl.data.shuffle import Permutation

if TYPE_CHECKING:
    from torch_edl.config import JobConfig
    from torch_edl.interfaces.source import Source

Piece = tuple[int, int, int]
"""Number of a task, offset of the first record in it, and offset after the last record."""


@dataclass(frozen=True)
class Shard:
    """A file, a table, or a partition of a stream."""

    name: str
    """Path, URL or name of the source."""
    records: int
    """Number of records."""
    size: int = 0
    """Size in bytes when the records were counted; 0: not a file."""
    mtime_ns: int = 0
    """Modification time when the records were counted, in ns since the epoch; 0: unknown."""
    fingerprint: str = field(default="", compare=False)
    """Fingerprint of the content when the records were counted; empty: not a file, or not read."""

    @classmethod
    def of(cls, source: Source) -> Shard:
        """Return the shard of a source without its fingerprint. A source of the user needs no
        ``stamp``."""
        return cls(source.name, source.count, *getattr(source, "stamp", ()))

    @classmethod
    def counted(cls, source: Source) -> Shard:
        """Return the shard of a source with the fingerprint of a file, which may read two blocks
        and raises DataError if the file has changed."""
        return replace(cls.of(source), fingerprint=getattr(source, "fingerprint", ""))

    def __str__(self) -> str:
        text = f"{self.records:,} records"
        if not self.size:
            return text
        changed = datetime.datetime.fromtimestamp(self.mtime_ns / 1e9, datetime.UTC)
        return f"{text}, {self.size:,} bytes of {changed:%Y-%m-%d %H:%M:%S.%f} UTC"


@dataclass(frozen=True)
class Task:
    """The records ``start .. end - 1`` of a shard."""

    id: int
    """Number of the task in the job."""
    epoch: int
    """Number of the epoch, from 0."""
    shard: str
    """Name of the shard."""
    start: int
    """Index of the first record in the shard."""
    end: int
    """Index after the last record."""

    @property
    def records(self) -> int:
        """Number of records."""
        return self.end - self.start


class TaskSpace:
    """The tasks of a pass by number: ``epoch * tasks_per_epoch + position``.

    Positions are shuffled by a pure function of (seed, epoch). A task is computed when it is
    needed, so the memory does not depend on the number of tasks.

    Args:
        shards: shards in a stable order; empty shards have no tasks.
        records_per_task: number of records of a full task. The last task of a shard has half of
            it to one and a half, or all records of a small shard.
        batch_size: maximum number of records of a minibatch. A task of n records has
            ceil(n / batch_size) minibatches, whose sizes differ by at most one.
        max_steps: number of minibatches after which the pass ends, within a task if necessary; 0:
            no limit.
    """

    open = False
    """Whether more tasks may be added; see :class:`~torch_edl.data.stream_space.StreamSpace`."""

    def __init__(
        self,
        shards: Sequence[Shard],
        records_per_task: int,
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = False,
        batch_size: int = 1,
        max_steps: int = 0,
    ) -> None:
        self.records_per_task = records_per_task
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self._shards = [s for s in shards if s.records > 0]
        self._by_name = {shard.name: shard for shard in self._shards}
        self._first = [0]  # first task of each shard in file order, and the number of tasks
        for shard in self._shards:
            self._first.append(self._first[-1] + tasks_of(shard.records, records_per_task))
        self.tasks_per_epoch = self._first[-1]
        """Number of tasks of a full epoch; 0 if there are no records."""
        # Records of each last task of a shard that is not full, by its index in file order.
        self._uneven = {
            last - 1: shard.records - (last - 1 - first) * records_per_task
            for shard, (first, last) in zip(
                self._shards, itertools.pairwise(self._first), strict=True
            )
            if shard.records % records_per_task
        }
        self._orders: dict[int, tuple[Permutation, list[tuple[int, int]]]] = {}
        self.cut: Task | None
        """Last task if ``max_steps`` ends the pass within it; None otherwise."""
        self._max_steps = max_steps
        self.extend(epochs)

    @classmethod
    def for_training(cls, shards: Sequence[Shard], config: JobConfig) -> TaskSpace:
        """Return the training tasks of a job; the master and all members of a ring use the same."""
        return cls(
            shards,
            config.records_per_task,
            epochs=config.data.epochs,
            seed=config.train.seed,
            shuffle=config.data.shuffle,
            batch_size=config.data.batch_size,
            max_steps=config.train.max_steps,
        )

    def extend(self, epochs: int) -> None:
        """Set the number of epochs; the tasks of earlier epochs keep their numbers."""
        self.epochs, self.total, self.cut = epochs, self.tasks_per_epoch * epochs, None
        if self._max_steps:
            self._cut_after(self._max_steps)
        self.total_records = self.records_before(self.total)
        self.total_steps = self.steps_before(self.total)

    def task(self, id: int) -> Task:
        """Return task ``id``; 0 <= id < total."""
        if self.cut is not None and id == self.cut.id:
            return self.cut
        epoch, position = divmod(id, self.tasks_per_epoch)
        index = self._order(epoch)[0].forward(position) if self.shuffle else position
        number = bisect.bisect_right(self._first, index) - 1
        shard = self._shards[number]
        start = (index - self._first[number]) * self.records_per_task
        end = task_end(start, shard.records, self.records_per_task)
        return Task(id, epoch, shard.name, start, end)

    @property
    def shards(self) -> Sequence[Shard]:
        """Shards with records, in order."""
        return self._shards

    def shard(self, name: str) -> Shard:
        """Return the shard with a name, as counted at the start of the job."""
        return self._by_name[name]

    def steps_of(self, records: int) -> int:
        """Return the number of minibatches in the first ``records`` records of a task."""
        return -(-records // self.batch_size)

    def steps_before(self, id: int) -> int:
        """Return the number of minibatches of all tasks below ``id``."""
        return self._before(id, self.steps_of)

    def records_before(self, id: int) -> int:
        """Return the number of records of all tasks below ``id``."""
        return self._before(id, lambda records: records)

    def at(self, position: int) -> tuple[int, int]:
        """Return the task and the offset in it of a position in the order of tasks;
        0 <= position < total_records. Inverse of :meth:`records_before`."""
        id = bisect.bisect_right(range(self.total), position, key=self.records_before) - 1
        return id, position - self.records_before(id)

    def pieces(self, span: tuple[int, int]) -> list[Piece]:
        """Return the pieces of tasks for a span of positions."""
        first, last = span
        pieces = []
        task, offset = self.at(first)
        while first < last:
            count = min(last - first, self.task(task).records - offset)
            pieces.append((task, offset, offset + count))
            first += count
            task, offset = task + 1, 0
        return pieces

    def epoch_of(self, id: int) -> int:
        """Return the epoch of a task. For an id after the last task, return ``epochs``, or the
        epoch of the last task if ``max_steps`` ended the pass early."""
        if id < self.total:
            return id // self.tasks_per_epoch
        limited = self.cut is not None or self.total < self.tasks_per_epoch * self.epochs
        return (self.total - 1) // self.tasks_per_epoch if limited else self.epochs

    def epochs_before(self, id: int) -> int:
        """Return the number of epochs with all tasks below ``id``."""
        return id // self.tasks_per_epoch if self.tasks_per_epoch else self.epochs

    def _before(self, id: int, size: Callable[[int], int]) -> int:
        if not self.tasks_per_epoch:
            return 0
        extra = 0
        if self.cut is not None and id > self.cut.id:
            id, extra = self.cut.id, size(self.cut.records)
        epoch, position = divmod(id, self.tasks_per_epoch)
        full = size(self.records_per_task)
        whole = self.tasks_per_epoch * full - sum(full - size(n) for n in self._uneven.values())
        done = epoch * whole + position * full + extra
        if position:
            for where, records in self._order(epoch)[1]:
                if where >= position:
                    break
                done -= full - size(records)
        return done

    def _order(self, epoch: int) -> tuple[Permutation, list[tuple[int, int]]]:
        """Return the permutation of an epoch, and position and records of each last task of a
        shard that is not full."""
        order = self._orders.get(epoch)
        if order is None:
            permutation = Permutation(self.tasks_per_epoch, self.seed, epoch)
            place = permutation.inverse if self.shuffle else int
            uneven = sorted((place(index), records) for index, records in self._uneven.items())
            order = (permutation, uneven)
            if len(self._orders) >= 4:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return order

    def _cut_after(self, max_steps: int) -> None:
        if self.steps_before(self.total) <= max_steps:
            return
        # Last task that begins before the limit.
        last = bisect.bisect_left(range(self.total), max_steps, key=self.steps_before) - 1
        task = self.task(last)
        ends = minibatch_cuts(task.records, self.batch_size)
        records = ends[max_steps - self.steps_before(last)]
        self.total = last + 1
        if records < task.records:
            self.cut = Task(last, task.epoch, task.shard, task.start, task.start + records)


def one_off(name: str) -> TaskSpace:
    """Return a space of one task without data, which one worker executes once."""
    return TaskSpace([Shard(name, 1)], 1)
