"""The completed part of a sequence of tasks. Pure. Memory is used only for tasks that are done out
of order, or in part."""

from __future__ import annotations

from collections.abc import Iterable

from torch_edl.data.stream_space import AnySpace
from torch_edl.data.task_space import Task
from torch_edl.tables.watermarks import Watermarks


class TaskProgress:
    """The tasks that are done, and the committed records of others.

    Args:
        retired: id below which all tasks are done.
    """

    def __init__(self, space: AnySpace, retired: int = 0) -> None:
        self._space = space
        self.offsets: dict[int, int] = {}
        """Number of committed records, by task that is not done."""
        self.retired = min(retired, space.total)
        """Id below which all tasks are done, including one that ``max_steps`` cut."""
        self._ahead: set[int] = set()  # tasks done out of order
        self._records = space.records_before(self.retired)
        self._steps = space.steps_before(self.retired)

    @property
    def complete(self) -> bool:
        """True once every task is done."""
        return not self._space.open and self.retired >= self._space.total

    @property
    def retired_before(self) -> int:
        """Id below which all tasks are done.

        A task that ``max_steps`` cut is not counted, since a higher limit continues it.
        """
        cut = self._space.cut
        return self.retired if cut is None else min(self.retired, cut.id)

    @property
    def tasks(self) -> int:
        """Number of done tasks."""
        return self.retired + len(self._ahead)

    @property
    def done_records(self) -> int:
        """Number of records of done tasks."""
        return self._records

    @property
    def records(self) -> int:
        """Number of records of done tasks, and of the committed parts of others."""
        return self._records + sum(self.offsets.values())

    @property
    def steps(self) -> int:
        """Number of minibatches of done tasks, and of the committed parts of others."""
        return self._steps + sum(map(self._space.steps_of, self.offsets.values()))

    def has(self, id: int) -> bool:
        """Return whether a task is done."""
        return id < self.retired or id in self._ahead

    def watermarks(self) -> Watermarks:
        """Return the watermarks of what is done."""
        watermarks = {id: self._space.task(id).records for id in self._ahead}
        cut = self._space.cut
        if cut is not None and self.retired > cut.id:
            watermarks[cut.id] = cut.records
        return Watermarks(self.retired_before, watermarks | self.offsets)

    def commit(self, id: int, offset: int) -> None:
        """Record that the first ``offset`` records of a task are in the model. A task is done only
        when it is completed, even if all its records are committed."""
        offset = min(offset, self._space.task(id).records)
        self.offsets[id] = max(offset, self.offsets.get(id, 0))

    def finish(self, task: Task) -> None:
        """Record that a task is done."""
        self.offsets.pop(task.id, None)
        self._records += task.records
        self._steps += self._space.steps_of(task.records)
        self._ahead.add(task.id)
        while self.retired in self._ahead:
            self._ahead.remove(self.retired)
            self.retired += 1

    def finish_others(self, end: int, open: Iterable[int]) -> None:
        """Record that all tasks below ``end`` are done, except those that are ``open``."""
        space, records = self._space, [self._space.task(id).records for id in open]
        self._ahead = set(range(self.retired, end)).difference(open)
        self._records = space.records_before(end) - sum(records)
        self._steps = space.steps_before(end) - sum(map(space.steps_of, records))
