"""The tasks of endless streams, which are cut as records arrive.

The records of task ``i`` are stored in a plan, since they are not a function of ``i``. A task may
be leased only after the master's store has the plan with the task. A master that takes over must
assign the same records to ``i``, because the servers count the trained records of each task. A
checkpoint holds the plan from the first unfinished task on, and the start of the next task of each
partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.errors import DataError
from torch_edl.events import RecordsRemoved
from torch_edl.interfaces.source import ENDLESS

TASKS_AHEAD = 512
"""Maximum number of unfinished tasks in a plan."""

PLAN = "plan"
"""Key of the plan in checkpoints and in the store."""


@dataclass(frozen=True)
class StreamPlan:
    """The tasks from ``first`` on, and sums over all earlier tasks. A plan is immutable, so threads
    read it without a lock."""

    first: int = 0
    """Id of the first task."""
    records: int = 0
    """Number of records of all tasks below ``first``."""
    steps: int = 0
    """Number of minibatches of all tasks below ``first``."""
    tasks: tuple[Task, ...] = ()
    """Tasks from ``first`` on."""
    sums: tuple[tuple[int, int], ...] = ()
    """Number of records and of minibatches before each of ``tasks``, from the start of the job."""
    next: Mapping[str, int] = field(default_factory=dict)
    """First offset of each partition that is in no task."""
    origin: Mapping[str, int] = field(default_factory=dict)
    """Offset of each partition at which the job began."""

    @property
    def end(self) -> int:
        """Id after the last task."""
        return self.first + len(self.tasks)

    def with_task(self, shard: str, start: int, end: int, batch_size: int) -> StreamPlan:
        """Return the plan with one more task."""
        before = self.sums_before(self.end, batch_size)
        task = Task(self.end, 0, shard, start, end)
        return replace(
            self,
            tasks=(*self.tasks, task),
            sums=(*self.sums, before),
            next={**self.next, shard: end},
        )

    def sums_before(self, id: int, batch_size: int) -> tuple[int, int]:
        """Return the number of records and of minibatches of all tasks below ``id``;
        first <= id <= end."""
        if id <= self.first:
            return self.records, self.steps
        if id < self.end:
            return self.sums[id - self.first]
        (records, steps), last = self.sums[-1], self.tasks[-1].records
        return records + last, steps + -(-last // batch_size)

    def since(self, id: int, batch_size: int) -> StreamPlan:
        """Return the plan without the tasks below ``id``; first <= id <= end."""
        records, steps = self.sums_before(id, batch_size)
        dropped = id - self.first
        return replace(
            self,
            first=id,
            records=records,
            steps=steps,
            tasks=self.tasks[dropped:],
            sums=self.sums[dropped:],
        )

    def to_state(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        names = sorted(self.next)
        numbers = {name: number for number, name in enumerate(names)}
        return {
            "first": self.first,
            "records": self.records,
            "steps": self.steps,
            "next": [[name, self.next[name], self.origin[name]] for name in names],
            "tasks": [[numbers[task.shard], task.start, task.end] for task in self.tasks],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], batch_size: int) -> StreamPlan:
        """Return the plan for a value of :meth:`to_state`."""
        plan = cls(first=state["first"], records=state["records"], steps=state["steps"])
        names = [name for name, *_ in state["next"]]
        for number, start, end in state["tasks"]:
            plan = plan.with_task(names[number], start, end, batch_size)
        return replace(
            plan,
            next={name: offset for name, offset, _ in state["next"]},
            origin={name: offset for name, _, offset in state["next"]},
        )


class StreamSpace:
    """The tasks of streams by number, with the interface of a
    :class:`~torch_edl.data.task_space.TaskSpace` that grows.

    Args:
        records_per_task: number of records of a full task. Shorter tasks are cut if workers are
            idle.
        max_steps: number of minibatches after which the stream is over; 0: no limit.
        max_records: number of records after which the stream is over; 0: no limit.
        skip_removed: skip records that the brokers removed before a task contained them.
    """

    epochs = 1
    """Number of epochs; a stream has one."""
    cut = None
    """Shortened last task; a stream has none."""

    def __init__(
        self,
        records_per_task: int,
        *,
        batch_size: int,
        max_steps: int = 0,
        max_records: int = 0,
        skip_removed: bool = False,
    ) -> None:
        self.records_per_task = records_per_task
        self.batch_size = batch_size
        self.plan = StreamPlan()
        """The current plan, which may contain tasks that the store does not have yet."""
        self.total = 0
        """Id after the last task that may be leased; the store has the plan of these tasks."""
        self.life = 0
        """Number of times that the plan was restored."""
        self.known = 0
        """Number of records in all tasks and, at the last query, in the brokers behind them."""
        self._max_steps = max_steps
        self._max_records = max_records
        self._skip_removed = skip_removed

    @classmethod
    def for_training(cls, config: JobConfig) -> StreamSpace:
        """Return the training tasks of a job."""
        return cls(
            config.records_per_task,
            batch_size=config.data.batch_size,
            max_steps=config.train.max_steps,
            max_records=config.data.max_records,
            skip_removed=config.data.skip_damaged,
        )

    # ---- the interface of a TaskSpace ----

    @property
    def open(self) -> bool:
        """Whether more tasks may be added."""
        return self.total < self.plan.end or not self._is_at_limit(self.plan.end)

    @property
    def total_records(self) -> int:
        """Number of known records."""
        return max(self.known, self.records_before(self.plan.end))

    @property
    def total_steps(self) -> int:
        """Number of minibatches of all tasks so far."""
        return self.steps_before(self.plan.end)

    def task(self, id: int) -> Task:
        """Return task ``id``, which must be in the plan."""
        plan = self.plan
        return plan.tasks[id - plan.first]

    def shard(self, name: str) -> Shard:
        """Return the shard of a partition, for comparison with the source of a worker."""
        return Shard(name, ENDLESS)

    def steps_of(self, records: int) -> int:
        return -(-records // self.batch_size)

    def steps_before(self, id: int) -> int:
        return self.plan.sums_before(id, self.batch_size)[1]

    def records_before(self, id: int) -> int:
        return self.plan.sums_before(id, self.batch_size)[0]

    def epoch_of(self, id: int) -> int:
        """Return 0, or 1 if the stream is over and ``id`` is after the last task."""
        return int(not self.open and id >= self.total)

    def epochs_before(self, id: int) -> int:
        """Return 0, since a stream ends only at a limit."""
        return 0

    # ---- changes ----

    def grow(
        self, offsets: Mapping[str, tuple[int, int]], *, done: int, idle: bool
    ) -> list[RecordsRemoved]:
        """Cut tasks from the available records, one task of each partition in turn.

        Args:
            offsets: first offset of each partition, and offset after its last record; a new
                partition begins at its first offset.
            done: id of the first unfinished task.
            idle: True if workers have no tasks, so that tasks need not be full.

        Returns:
            The records that were removed before a task contained them.

        Raises:
            DataError: such records may not be skipped; or a partition ends before records that
                are in a task.
        """
        removed = []
        begins = {}
        for name, (first, end) in sorted(offsets.items()):
            begin = self.plan.next.get(name, first)
            if begin < first:
                if not self._skip_removed:
                    raise DataError(
                        name,
                        f"the offsets {begin} to {first - 1} were removed before they were read; "
                        "keep messages longer (retention.ms), or leave these out: --skip-damaged",
                    )
                removed.append(RecordsRemoved(partition=name, first=begin, last=first - 1))
                begin = first
            if end < begin:
                raise DataError(
                    name,
                    f"ends at offset {end}, and was read to {begin}: the topic was made anew, or "
                    "its brokers lost messages; start a job without --resume",
                )
            begins[name] = begin
        origin = {**begins, **self.plan.origin}
        self.plan = replace(self.plan, next={**self.plan.next, **begins}, origin=origin)
        before = self.plan.end
        self._cut(offsets, done, self.records_per_task)
        if idle and self.plan.end == before == self.total:
            self._cut(offsets, done, 1)
        left = sum(offsets[name][1] - self.plan.next[name] for name in offsets)
        self.known = self.records_before(self.plan.end) + left
        if self._max_records:
            self.known = min(self.known, self._max_records)
        return removed

    def _cut(self, offsets: Mapping[str, tuple[int, int]], done: int, least: int) -> None:
        """Cut tasks of at least ``least`` records; the last task before a limit may be shorter."""
        more = True
        while more:
            more = False
            for name in sorted(offsets):
                if self.plan.end - done >= TASKS_AHEAD or self._is_at_limit(self.plan.end):
                    return
                start, wanted = self.plan.next[name], self._wanted()
                records = min(wanted, offsets[name][1] - start)
                if records >= min(least, wanted):
                    self.plan = self.plan.with_task(name, start, start + records, self.batch_size)
                    more = True

    def _wanted(self) -> int:
        """Return the number of records of the next full task, within the limits."""
        records, steps = self.plan.sums_before(self.plan.end, self.batch_size)
        wanted = self.records_per_task
        if self._max_records:
            wanted = min(wanted, self._max_records - records)
        if self._max_steps:
            wanted = min(wanted, (self._max_steps - steps) * self.batch_size)
        return wanted

    def _is_at_limit(self, id: int) -> bool:
        records, steps = self.plan.sums_before(id, self.batch_size)
        return bool(
            (self._max_steps and steps >= self._max_steps)
            or (self._max_records and records >= self._max_records)
        )

    def kept(self, life: int, end: int) -> None:
        """Allow leases of the tasks below ``end``, whose plan is now in the store; ignore a plan
        that was written at an earlier value of :attr:`life`."""
        if life == self.life:
            self.total = max(self.total, end)

    def forget(self, before: int) -> None:
        """Remove the tasks below ``before``, which are done, and which no checkpoint in progress
        needs."""
        self.plan = self.plan.since(before, self.batch_size)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore the plan of a checkpoint or of the store; None: return to the start."""
        origin = self.plan.origin
        self.plan = StreamPlan(next=origin, origin=origin)
        if state is not None:
            self.plan = StreamPlan.from_state(state, self.batch_size)
        self.life += 1
        self.total = self.plan.end
        self.known = self.records_before(self.plan.end)


def saved_plan(space: AnySpace, before: int = 0) -> dict[str, Any]:
    """Return the plan for a checkpoint or for the store, without the tasks below ``before``, which
    are done; empty for data with an end."""
    if isinstance(space, TaskSpace):
        return {}
    plan = space.plan
    return {PLAN: plan.since(max(before, plan.first), space.batch_size).to_state()}


AnySpace = TaskSpace | StreamSpace
"""The tasks of counted data, or of streams."""
