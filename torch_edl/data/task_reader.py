"""The records of tasks: reading, row numbers, and lookup by position in the order of tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch_edl.data.cuts import task_end
from torch_edl.data.shuffle import Permutation
from torch_edl.data.sources import Records, Source, concat, cut, take
from torch_edl.data.task_space import Piece, Shard, Task, TaskSpace
from torch_edl.errors import DataError

KEPT_SOURCES = 256
"""Maximum number of open sources of a reader; a Parquet file of 40 columns and 10 row groups takes
0.4 MB."""

_KEPT_TASKS = 2  # number of tasks in memory; a minibatch may span two tasks
_NAMED = 100  # maximum number of records in a message


def named(rows: Sequence[int], shard: str) -> str:
    """Return the name of some records of a shard for messages; ``rows`` must not be empty."""
    rows = sorted(rows)
    first, last = rows[0], rows[-1]
    if first == last:
        return f"record {first:,} of {shard}"
    if last - first == len(rows) - 1:
        return f"records {first} to {last} of {shard}"
    more = len(rows) - _NAMED
    shown = ", ".join(map(str, rows[:_NAMED])) + f" and {more:,} more" * (more > 0)
    return f"records {shown} of {shard}"


class TaskReader:
    """Reads the records of tasks, shuffled within each task by (seed, task id).

    A task is read as a contiguous range. A shuffle over single records would decode a whole block
    of the file for each record.

    Args:
        open_shard: function from the name of a shard to its source.
        records_per_task: number of records of a full task.
        seed: seed of the shuffle; None: records keep the order of the file.
    """

    def __init__(
        self, open_shard: Callable[[str], Source], records_per_task: int, seed: int | None
    ) -> None:
        self._open = open_shard
        self._records_per_task = records_per_task
        self._seed = seed
        self._sources: OrderedDict[str, Source] = OrderedDict()  # least recently used first

    def source(self, shard: str) -> Source:
        """Return the source of a shard; open it unless it is among the last ``KEPT_SOURCES``."""
        source = self._sources.pop(shard, None)
        if source is None:
            source = self._open(shard)
        self._sources[shard] = source
        while len(self._sources) > KEPT_SOURCES:
            self._sources.popitem(last=False)
        return source

    def read(self, task: Task, counted: Shard, *, shuffled: bool = True) -> Records:
        """Return the records of a task: a list, or a ``pyarrow.Table``.

        Args:
            counted: the shard of the task, as counted by the job.
            shuffled: False: return the records in the order of the file.

        Raises:
            DataError: the shard has changed since it was counted, so that tasks may not cover all
                its records; or the records cannot be read.
        """
        source = self.source(task.shard)
        found = Shard.of(source)
        if replace(found, name=counted.name) != counted:
            raise DataError(
                found.name,
                f"is not what the job counted when it began: it was {counted}; now it is {found}. "
                "Start the job again, and let data that come later go into files of their own",
            )
        if not shuffled or self._seed is None:
            return source.read(task.start, task.end)
        end, order = self._order(task, self._seed)
        return take(source.read(task.start, end), order)

    def rows(self, task: Task, first: int, last: int, *, shuffled: bool = True) -> list[int]:
        """Return the row numbers in the shard of the records ``first .. last - 1`` of
        :meth:`read`."""
        if not shuffled or self._seed is None:
            return list(range(task.start + first, task.start + last))
        order = self._order(task, self._seed)[1][first:last]
        return [task.start + int(index) for index in order]

    def _order(self, task: Task, seed: int) -> tuple[int, Any]:
        """Return the row after the last shuffled record, and the order of the task's records."""
        # A task that a limit has shortened is a prefix of the shuffled full task, so that a later
        # job can continue with the remaining records.
        count = self.source(task.shard).count
        end = max(task.end, task_end(task.start, count, self._records_per_task))
        order = Permutation(end - task.start, seed, task.id)
        return end, order.span(0, task.end - task.start)


class TaskRecords:
    """The records of the training tasks by piece of a task, a dataset with ``__getitems__``."""

    def __init__(self, space: TaskSpace, reader: TaskReader) -> None:
        self._space = space
        self._reader = reader
        self._kept: OrderedDict[int, Records] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of records of an epoch."""
        return self._space.records_before(min(self._space.tasks_per_epoch, self._space.total))

    def __getitems__(self, pieces: list[Piece]) -> Records:
        """Return the records of some pieces, concatenated: a list, or a ``pyarrow.Table``."""
        return concat([cut(self._task(task), first, last) for task, first, last in pieces])

    def name(self, pieces: Sequence[Piece], index: int) -> str:
        """Return the name of the record at ``index`` of some pieces, for messages."""
        for number, first, last in pieces:
            if index < last - first:
                task, place = self._space.task(number), first + index
                return named(self._reader.rows(task, place, place + 1), task.shard)
            index -= last - first
        raise IndexError(index)

    def names(self, pieces: Sequence[Piece]) -> str:
        """Return the name of all records of some pieces, for messages."""
        rows: dict[str, list[int]] = {}
        for number, first, last in pieces:
            task = self._space.task(number)
            rows.setdefault(task.shard, []).extend(self._reader.rows(task, first, last))
        return "; ".join(named(each, shard) for shard, each in rows.items())

    def _task(self, number: int) -> Records:
        records = self._kept.get(number)
        if records is None:
            task = self._space.task(number)
            records = self._reader.read(task, self._space.shard(task.shard))
            self._kept[number] = records
            if len(self._kept) > _KEPT_TASKS:
                self._kept.popitem(last=False)
        return records
