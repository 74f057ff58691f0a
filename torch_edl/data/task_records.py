"""The records of tasks, shuffled within each; as a dataset whose indices are pieces of tasks.

Files are read task by task, in order, whatever the order of training: a shuffle over single
records would read a block of the file for each.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_edl.data.order import Span
from torch_edl.data.sources import Source, concat, take
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.errors import DataError

Piece = tuple[int, int, int]
"""A task, and offsets in it: of the first record and of one after the last."""

_KEPT = 2  # tasks in memory: a minibatch may reach from one into the next


def check_unchanged(source: Source, counted: Shard) -> None:
    """Raises DataError unless a source that was opened is the one that was counted.

    A file that somebody adds to between the two has records of which no task knows.
    """
    found = Shard.of(source)
    if dataclasses.replace(found, name=counted.name) != counted:
        raise DataError(
            found.name,
            f"is not what the job counted when it began: it was {counted}; now it is {found}. "
            "Start the job again, and let data that come later go into files of their own",
        )


def read_task(source: Source, task: Task, records_per_task: int, seed: int | None) -> Any:
    """The records of a task: a list, or a ``pyarrow.Table``.

    Args:
        records_per_task: of whole tasks.
        seed: shuffle them by (seed, task id); None: leave them in the order of the file.
    """
    if seed is None:
        return source.read(task.start, task.end)
    end, order = _shuffled(source.count, task, records_per_task, seed)
    return take(source.read(task.start, end), order)


def record_of(count: int, task: Task, records_per_task: int, seed: int | None, index: int) -> int:
    """Which record of its shard, of ``count``, is the one at ``index`` of :func:`read_task`."""
    if seed is None:
        return task.start + index
    return task.start + int(_shuffled(count, task, records_per_task, seed)[1][index])


def _shuffled(count: int, task: Task, records_per_task: int, seed: int) -> tuple[int, Any]:
    """One after the last record that the order of a task is about, and its order."""
    # A task that was cut short begins as the whole of it would: a job that goes on from there
    # later finds the records that are left.
    end = max(task.end, min(task.start + records_per_task, count))
    digest = hashlib.blake2b(f"{seed}/{task.id}".encode(), digest_size=8).digest()
    random = np.random.default_rng(int.from_bytes(digest, "little"))
    return end, random.permutation(end - task.start)[: task.end - task.start]


class TaskRecords:
    """Records by piece of task: what a DataLoader calls a dataset with ``__getitems__``.

    Args:
        open_shard: from the name of a shard to its source.
        seed: see :func:`read_task`.
    """

    def __init__(
        self, space: TaskSpace, open_shard: Callable[[str], Source], seed: int | None
    ) -> None:
        self._space = space
        self._open = open_shard
        self._seed = seed
        self._sources: dict[str, Source] = {}
        self._kept: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        """Records of an epoch."""
        return self._space.records_before(min(self._space.tasks_per_epoch, self._space.total))

    def __getitems__(self, pieces: list[Piece]) -> Any:
        """The records of some pieces, one after the other: a list, or a ``pyarrow.Table``."""
        return concat([_slice(self._task(task), first, last) for task, first, last in pieces])

    def name(self, pieces: Sequence[Piece], index: int) -> str:
        """What a person calls the record at ``index`` of some pieces."""
        for number, first, last in pieces:
            if index < last - first:
                task = self._space.task(number)
                count, each = self._sources[task.shard].count, self._space.records_per_task
                record = record_of(count, task, each, self._seed, first + index)
                return f"record {record:,} of {task.shard}"
            index -= last - first
        raise IndexError(index)

    def _task(self, number: int) -> Any:
        records = self._kept.get(number)
        if records is None:
            task = self._space.task(number)
            if task.shard not in self._sources:
                source = self._open(task.shard)
                check_unchanged(source, self._space.shard(task.shard))
                self._sources[task.shard] = source
            records = read_task(
                self._sources[task.shard], task, self._space.records_per_task, self._seed
            )
            self._kept[number] = records
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return records


class TaskOrder:
    """From positions in the order of tasks to pieces of them."""

    def __init__(self, space: TaskSpace) -> None:
        self._space = space

    def indices(self, span: Span) -> list[Piece]:
        """The pieces at some positions."""
        first, last = span
        pieces = []
        task, offset = self._space.at(first)
        while first < last:
            count = min(last - first, self._space.task(task).records - offset)
            pieces.append((task, offset, offset + count))
            first += count
            task, offset = task + 1, 0
        return pieces


def _slice(records: Any, first: int, last: int) -> Any:
    return records[first:last] if isinstance(records, list) else records.slice(first, last - first)
