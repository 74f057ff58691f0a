"""Progress in the tasks of a job: what is done, whole epochs, records that a server lost, and
minibatches that were left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch_edl.data.stream_space import AnySpace, StreamSpace
from torch_edl.data.task_space import Task, TaskSpace
from torch_edl.events import StepsLeftOut
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

# Share of minibatches without a finite loss above which the job ends with a warning.
_MUCH = 0.1


class TaskProgress:
    """The tasks that are done, and the committed records of others. Memory is used only for tasks
    that are done out of order, or in part."""

    def __init__(self, space: AnySpace) -> None:
        self.space = space
        self._reset(0)

    def _reset(self, retired: int) -> None:
        """Begin with the tasks below ``retired`` done."""
        self._offsets: dict[int, int] = {}  # committed records, by task that is not done
        # Id below which all tasks are done, including one that ``max_steps`` cut.
        self._retired = min(retired, self.space.total)
        self._ahead: set[int] = set()  # tasks done out of order
        self._records = self.space.records_before(self._retired)
        self._steps = self.space.steps_before(self._retired)

    @property
    def complete(self) -> bool:
        """True once every task is done."""
        return not self.space.open and self._retired >= self.space.total

    @property
    def retired_before(self) -> int:
        """Id below which all tasks are done. A task that ``max_steps`` cut does not count as done,
        because a job that is resumed with more steps continues it."""
        cut = self.space.cut
        return self._retired if cut is None else min(self._retired, cut.id)

    @property
    def done(self) -> int:
        """Number of done tasks."""
        return self._retired + len(self._ahead)

    @property
    def records_done(self) -> int:
        """Number of records of done tasks, and of the committed parts of others."""
        return self._records + sum(self._offsets.values())

    @property
    def steps_done(self) -> int:
        """Number of minibatches of done tasks, and of the committed parts of others."""
        return self._steps + sum(map(self.space.steps_of, self._offsets.values()))

    @property
    def epoch(self) -> int:
        """Epoch of the first task that is not done."""
        return self.space.epoch_of(self._retired)

    def is_done(self, id: int) -> bool:
        """Return whether a task is done."""
        return id < self._retired or id in self._ahead

    def progress(self) -> Watermarks:
        """Return the watermarks of what is done, for a checkpoint."""
        watermarks = {id: self.space.task(id).records for id in self._ahead}
        cut = self.space.cut
        if cut is not None and self._retired > cut.id:
            watermarks[cut.id] = cut.records
        return Watermarks(self.retired_before, watermarks | self._offsets)

    def _commit(self, id: int, offset: int) -> None:
        """Record that the first ``offset`` records of a task are in the model. A task is done only
        when it is completed, even if all its records are committed."""
        offset = min(offset, self.space.task(id).records)
        self._offsets[id] = max(offset, self._offsets.get(id, 0))

    def _finish(self, task: Task) -> None:
        """Record that a task is done."""
        self._offsets.pop(task.id, None)
        self._records += task.records
        self._steps += self.space.steps_of(task.records)
        self._ahead.add(task.id)
        while self._retired in self._ahead:
            self._ahead.remove(self._retired)
            self._retired += 1

    def _finish_others(self, end: int, open: Iterable[int]) -> None:
        """Record that all tasks below ``end`` are done, except those that are ``open``."""
        space, records = self.space, [self.space.task(id).records for id in open]
        self._ahead = set(range(self._retired, end)).difference(open)
        self._records = space.records_before(end) - sum(records)
        self._steps = space.steps_before(end) - sum(map(space.steps_of, records))


def steps_of(space: AnySpace, progress: Watermarks) -> int:
    """Return the number of minibatches in ``progress``."""
    retired = min(progress.retired_before, space.total)
    return space.steps_before(retired) + sum(
        space.steps_of(min(mark, space.task(id).records))
        for id, mark in progress.offsets.items()
        if retired <= id < space.total
    )


# ---- epochs; before the tasks are made, nothing is done ----


def records_of(tasks: TaskProgress | None, epochs: int) -> int:
    """Return the number of records of some epochs; 0 before the tasks are made."""
    return 0 if tasks is None else epochs * (tasks.space.total_records // tasks.space.epochs)


def whole_epochs(tasks: TaskProgress | None) -> int:
    """Return the number of epochs whose records are all trained."""
    return 0 if tasks is None else tasks.space.epochs_before(tasks.retired_before)


def is_at_next(tasks: TaskProgress | None, epochs: int) -> bool:
    """Return whether the first ``epochs`` epochs are done, and more epochs follow."""
    if tasks is None or epochs >= tasks.space.epochs:
        return False
    return tasks.retired_before >= first_task(tasks, epochs)


def is_beyond(tasks: TaskProgress | None, epochs: int) -> bool:
    """Return whether records after the first ``epochs`` epochs are done."""
    return tasks is not None and any(
        task >= first_task(tasks, epochs)
        for task in [tasks.retired_before - 1, *tasks.progress().offsets]
    )


def first_task(tasks: TaskProgress, epoch: int) -> int:
    """Return the first task of an epoch, counted from 0."""
    assert isinstance(tasks.space, TaskSpace)
    return epoch * tasks.space.tasks_per_epoch


# ---- what is missing in the model ----


def without_lost(
    space: AnySpace, progress: Watermarks, marks: Watermarks
) -> tuple[Watermarks, int]:
    """Return the progress without the records that a server lacks, and the number of these records.

    Args:
        progress: watermarks of what is done.
        marks: watermarks of the server's model. For a stream, tasks below
            ``progress.retired_before`` are not compared: their sizes are forgotten.
    """
    first = progress.retired_before
    if not isinstance(space, StreamSpace):
        first = min(first, marks.retired_before)
    end = max([progress.retired_before, *(task + 1 for task in progress.offsets)])
    offsets, lacks = {}, 0
    for task in range(first, end):
        done = min(progress.offset(task), space.task(task).records)
        offsets[task] = min(done, marks.offset(task))
        lacks += done - offsets[task]
    return Watermarks(first, offsets), lacks


class NanSteps:
    """Counts of what workers reported since the model was created or restored."""

    def __init__(self) -> None:
        self.nan_steps = 0
        """Number of minibatches whose loss was not finite."""
        self.updates = 0
        """Number of updates that a ring of a script left out."""
        self._steps = 0
        self._records = 0
        self._wanted = 0

    def begin(self, records: int) -> None:
        """Reset the counts for an incarnation of the model that has ``records`` left to train."""
        self.nan_steps = self._steps = self._records = 0
        self._wanted = records

    def reported(self, counts: pb.TaskCounts) -> None:
        """Add the counts of a task, or of a part of it."""
        self._records += counts.records
        self._steps += counts.steps
        self.nan_steps += counts.nan_steps

    def reached(self, left_out: int, position: int, batch_size: int) -> None:
        """Record how many records up to the position of a ring's member gave no gradient."""
        if position < self._records:
            return  # another member has reported more
        self._records, self._steps = position, -(-position // batch_size)
        self.nan_steps = self._steps if left_out >= position else left_out // batch_size

    def to_state(self) -> list[int]:
        return [self.nan_steps, self._steps, self._records, self._wanted, self.updates]

    def from_state(self, state: Sequence[int]) -> None:
        self.nan_steps, self._steps, self._records, self._wanted, self.updates = state

    @property
    def is_all(self) -> bool:
        """True if every record is accounted for, and no minibatch had a finite loss. Work that a
        lost worker did not report may have been trained."""
        return 0 < self._steps <= self.nan_steps and self._records >= self._wanted

    @property
    def failure(self) -> str:
        """Error of the job if :attr:`is_all` is true."""
        return (
            f"nothing was trained: none of the {self._steps:,} minibatches had a finite loss, "
            "and --on-nan skip left them out; lower the learning rate, or look at the data"
        )

    @property
    def event(self) -> StepsLeftOut | None:
        """Warning at the end of the job; None if there is nothing to report."""
        if self.nan_steps <= _MUCH * self._steps:
            return None
        return StepsLeftOut(left_out=self.nan_steps, steps=self._steps)
