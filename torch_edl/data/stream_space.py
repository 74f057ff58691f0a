"""The tasks of streams, which have no end: cut as records arrive, in an order that is written down.

No function says what task ``i`` is, so a plan does. A task may be leased only when the plan with it
is kept in the store of the master: a master that takes over must mean the same records by ``i``,
since the servers know how many of them are in the model. A checkpoint holds the plan from the first
task that is not done, and where the next task of each partition begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.errors import DataError
from torch_edl.interfaces import ENDLESS

TASKS_AHEAD = 512
"""Tasks that are cut and not done, at most."""

PLAN = "plan"
"""Where checkpoints and the store have it."""


@dataclass(frozen=True)
class StreamPlan:
    """The tasks from ``first`` on, and what is before and behind them. Never changed: a thread that
    has one reads it without a lock."""

    first: int = 0
    records: int = 0
    """Of all tasks below ``first``."""
    steps: int = 0
    """Minibatches of all tasks below ``first``."""
    tasks: tuple[Task, ...] = ()
    sums: tuple[tuple[int, int], ...] = ()
    """Records and minibatches before each of ``tasks``, from the beginning."""
    next: Mapping[str, int] = field(default_factory=dict)
    """Of each partition, the first offset that is in no task."""
    origin: Mapping[str, int] = field(default_factory=dict)
    """Of each partition, the first offset of all."""

    @property
    def end(self) -> int:
        """One after the last task."""
        return self.first + len(self.tasks)

    def with_task(self, shard: str, start: int, end: int, batch_size: int) -> StreamPlan:
        """The plan with one more task."""
        before = self.sums_before(self.end, batch_size)
        task = Task(self.end, 0, shard, start, end)
        return replace(
            self,
            tasks=(*self.tasks, task),
            sums=(*self.sums, before),
            next={**self.next, shard: end},
        )

    def sums_before(self, id: int, batch_size: int) -> tuple[int, int]:
        """Records and minibatches of all tasks below ``id``; first <= id <= end."""
        if id <= self.first:
            return self.records, self.steps
        if id < self.end:
            return self.sums[id - self.first]
        (records, steps), last = self.sums[-1], self.tasks[-1].records
        return records + last, steps + -(-last // batch_size)

    def since(self, id: int, batch_size: int) -> StreamPlan:
        """The plan without the tasks below ``id``; first <= id <= end."""
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
        """As JSON can say it."""
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
        """The inverse of :meth:`to_state`."""
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
    """The tasks of streams, by number; for the rest of the master it is a
    :class:`~torch_edl.data.task_space.TaskSpace` that grows.

    Args:
        records_per_task: of a full task. A shorter one is cut where workers would have nothing to
            do.
        max_steps: the stream is over after so many minibatches; 0: it is not.
        max_records: the same for records.
        skip_removed: go on behind records that were removed before they were in a task.
    """

    epochs = 1
    cut = None

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
        self.total = 0
        """Tasks that may be leased: those before are kept in the store."""
        self.life = 0
        """How often the plan went back."""
        self.known = 0
        """Records that the brokers had when they were last asked, and those done."""
        self._max_steps = max_steps
        self._max_records = max_records
        self._skip_removed = skip_removed

    @classmethod
    def for_training(cls, config: JobConfig) -> StreamSpace:
        """The training tasks of a job."""
        return cls(
            config.records_per_task,
            batch_size=config.data.batch_size,
            max_steps=config.train.max_steps,
            max_records=config.data.max_records,
            skip_removed=config.data.skip_damaged,
        )

    # ---- what it says, as a TaskSpace does ----

    @property
    def open(self) -> bool:
        """More tasks may come."""
        return self.total < self.plan.end or not self._is_at_limit(self.plan.end)

    @property
    def total_records(self) -> int:
        """Records that are known of."""
        return max(self.known, self.records_before(self.plan.end))

    @property
    def total_steps(self) -> int:
        """Minibatches of all tasks so far."""
        return self.steps_before(self.plan.end)

    def task(self, id: int) -> Task:
        """Task ``id``, which is not below those that are still of interest."""
        plan = self.plan
        return plan.tasks[id - plan.first]

    def shard(self, name: str) -> Shard:
        """A partition, as a worker compares it."""
        return Shard(name, ENDLESS)

    def steps_of(self, records: int) -> int:
        """Minibatches in the first ``records`` records of a task."""
        return -(-records // self.batch_size)

    def steps_before(self, id: int) -> int:
        """Minibatches of all tasks below ``id``."""
        return self.plan.sums_before(id, self.batch_size)[1]

    def records_before(self, id: int) -> int:
        """Records of all tasks below ``id``."""
        return self.plan.sums_before(id, self.batch_size)[0]

    def epoch_of(self, id: int) -> int:
        """0; 1 when the stream is over."""
        return int(not self.open and id >= self.total)

    def epochs_before(self, id: int) -> int:
        """0: a stream that is over ended at a limit."""
        return 0

    # ---- what happens to it ----

    def grow(self, offsets: Mapping[str, tuple[int, int]], *, done: int, idle: bool) -> list[str]:
        """Cuts tasks from what is there now, a task of each partition in turn.

        Args:
            offsets: of each partition, the first offset and one after the last; a new partition
                begins at its first offset.
            done: tasks below are done.
            idle: workers have nothing to lease, so that tasks need not be full.

        Returns:
            What to say of records that were removed before they were in a task.

        Raises:
            DataError: some were, and none may be skipped; or a partition ends before the records
                that were read of it.
        """
        said = []
        begins = {}
        for name, (first, end) in sorted(offsets.items()):
            begin = self.plan.next.get(name, first)
            if begin < first:
                text = f"the offsets {begin} to {first - 1} were removed before they were read"
                if not self._skip_removed:
                    raise DataError(
                        name,
                        f"{text}; keep messages longer (retention.ms), or leave these out: "
                        "--skip-damaged",
                    )
                begin = first
                said.append(f"{name}: {text}, and are left out")
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
        return said

    def _cut(self, offsets: Mapping[str, tuple[int, int]], done: int, least: int) -> None:
        """Cuts tasks of at least so many records, unless it is the last one."""
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
        """Records of the next task, were there enough."""
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
        """The plan of that life, with the tasks below ``end``, is in the store: they may be
        leased."""
        if life == self.life:
            self.total = max(self.total, end)

    def forget(self, before: int) -> None:
        """The tasks below ``before`` are done, and in no checkpoint that is being written."""
        self.plan = self.plan.since(before, self.batch_size)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Goes to the plan of a checkpoint, or of the store; None: to the beginning."""
        origin = self.plan.origin
        self.plan = StreamPlan(next=origin, origin=origin)
        if state is not None:
            self.plan = StreamPlan.from_state(state, self.batch_size)
        self.life += 1
        self.total = self.plan.end
        self.known = self.records_before(self.plan.end)


def saved_plan(space: AnySpace, before: int = 0) -> dict[str, Any]:
    """What a checkpoint, or the store, must say of what the tasks are.

    Args:
        before: the tasks below are done, and of no interest.
    """
    if isinstance(space, TaskSpace):
        return {}
    plan = space.plan
    return {PLAN: plan.since(max(before, plan.first), space.batch_size).to_state()}


AnySpace = TaskSpace | StreamSpace
"""The tasks of a pass over data that is counted, or of streams."""
