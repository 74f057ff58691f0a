"""The records of a job's training tasks by their place in the order of tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch_edl.data.feeder import TaskReader
from torch_edl.data.sources import Records, concat, cut
from torch_edl.data.task_space import Piece, TaskSpace

_KEPT = 2  # tasks in memory: a minibatch may reach from one into the next


class TaskRecords:
    """Records by piece of task, as a dataset with ``__getitems__``.

    Args:
        reader: of the files of ``space``.
    """

    def __init__(self, space: TaskSpace, reader: TaskReader) -> None:
        self._space = space
        self._reader = reader
        self._kept: OrderedDict[int, Records] = OrderedDict()

    def __len__(self) -> int:
        """Records of an epoch."""
        return self._space.records_before(min(self._space.tasks_per_epoch, self._space.total))

    def __getitems__(self, pieces: list[Piece]) -> Records:
        """The records of some pieces, one after the other: a list, or a ``pyarrow.Table``."""
        return concat([cut(self._task(task), first, last) for task, first, last in pieces])

    def name(self, pieces: Sequence[Piece], index: int) -> str:
        """What a person calls the record at ``index`` of some pieces."""
        for number, first, last in pieces:
            if index < last - first:
                return self._reader.name(self._space.task(number), first + index)
            index -= last - first
        raise IndexError(index)

    def _task(self, number: int) -> Records:
        records = self._kept.get(number)
        if records is None:
            task = self._space.task(number)
            records = self._reader.read(task, self._space.shard(task.shard))
            self._kept[number] = records
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return records
