"""Ends of epochs in the tasks of a job. Pure. Before the tasks are made, nothing is done."""

from __future__ import annotations

from master.state.work.tasks import TaskQueue
from torch_edl.data.task_space import TaskSpace


def records_of(tasks: TaskQueue | None, epochs: int) -> int:
    """Return the number of records of some epochs; 0 before the tasks are made."""
    return 0 if tasks is None else epochs * (tasks.space.total_records // tasks.space.epochs)


def whole_epochs(tasks: TaskQueue | None) -> int:
    """Return the number of epochs whose records are all trained."""
    return 0 if tasks is None else tasks.space.epochs_before(tasks.retired_before)


def is_at_next(tasks: TaskQueue | None, epochs: int) -> bool:
    """Return whether the first ``epochs`` epochs are done, and more epochs follow."""
    if tasks is None or epochs >= tasks.space.epochs:
        return False
    return tasks.retired_before >= first_task(tasks, epochs)


def is_beyond(tasks: TaskQueue | None, epochs: int) -> bool:
    """Return whether records after the first ``epochs`` epochs are done."""
    return tasks is not None and any(
        task >= first_task(tasks, epochs)
        for task in [tasks.retired_before - 1, *tasks.progress().offsets]
    )


def first_task(tasks: TaskQueue, epoch: int) -> int:
    """Return the first task of an epoch, counted from 0."""
    assert isinstance(tasks.space, TaskSpace)
    return epoch * tasks.space.tasks_per_epoch
