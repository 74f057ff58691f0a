"""When to evaluate, and how the parts that workers report become final metrics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from master.tasks import Pass, TaskQueue, errand
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import UsageError
from torch_edl.wire import codec
from torch_edl.wire import master_pb2 as pb

Array = npt.NDArray[Any]


@dataclass
class _Tensor:
    """One named tensor of a metric's state, merged so far."""

    reduction: str
    value: Array | None = None
    weight: float = 0.0
    parts: dict[int, Array] = field(default_factory=dict)
    """cat: by task, so that the order of arrival does not matter."""


_REDUCE: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


class MetricStates:
    """The states of all metrics, merged task by task.

    A plain function's metric is a mean over records. A metric object's state is a set of tensors,
    each merged by its reduction: sum, mean (weighted by records), max, min or cat.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._records: dict[str, int] = {}
        self._objects: dict[str, dict[str, _Tensor]] = {}

    def add(self, task_id: int, states: Iterable[pb.MetricState]) -> None:
        """Merges what one task gave.

        Raises:
            UsageError: a reduction that is not known, or shapes that cannot be merged.
        """
        for state in states:
            self._records[state.name] = self._records.get(state.name, 0) + state.records
            if not state.object:
                self._sums[state.name] = self._sums.get(state.name, 0.0) + state.sum
                continue
            tensors = self._objects.setdefault(state.name, {})
            for part in state.tensors:
                tensor = tensors.setdefault(part.name, _Tensor(part.reduction))
                try:
                    _merge(tensor, task_id, part, max(1, state.records))
                except (KeyError, ValueError) as error:
                    raise UsageError(
                        f"metric {state.name}: its state {part.name} with reduction "
                        f"{part.reduction!r} cannot be merged: {error}; use sum, mean, max, min "
                        "or cat, and one shape"
                    ) from error

    @property
    def has_objects(self) -> bool:
        """A worker must compute values from merged states."""
        return bool(self._objects)

    def means(self) -> dict[str, float]:
        """Values of the plain functions."""
        return {
            name: total / self._records[name] if self._records[name] else float("nan")
            for name, total in self._sums.items()
        }

    def objects(self) -> list[pb.MetricState]:
        """Merged states of the metric objects, for the worker that computes their values."""
        merged = []
        for name, tensors in self._objects.items():
            state = pb.MetricState(name=name, object=True, records=self._records[name])
            for tensor_name, tensor in tensors.items():
                state.tensors.add(
                    name=tensor_name,
                    value=codec.to_proto(_final(tensor)),
                    reduction=tensor.reduction,
                )
            merged.append(state)
        return merged


def _merge(tensor: _Tensor, task_id: int, part: pb.StateTensor, records: int) -> None:
    value = codec.from_proto(part.value)
    if tensor.reduction == "cat":
        tensor.parts[task_id] = np.atleast_1d(value)
        return
    if tensor.reduction == "mean":
        value = value.astype(np.float64) * records
        tensor.weight += records
        if tensor.value is not None:
            _same_shape(tensor.value, value)
            value = tensor.value + value
        tensor.value = value
        return
    reduce = _REDUCE[tensor.reduction]
    if tensor.value is None:
        tensor.value = value
    else:
        _same_shape(tensor.value, value)
        tensor.value = reduce(tensor.value, value)


def _same_shape(one: Array, other: Array) -> None:
    if one.shape != other.shape:
        raise ValueError(f"shapes {one.shape} and {other.shape}")


def _final(tensor: _Tensor) -> Array:
    if tensor.reduction == "cat":
        return np.concatenate([tensor.parts[id] for id in sorted(tensor.parts)], axis=0)
    assert tensor.value is not None
    if tensor.reduction == "mean":
        return np.asarray(tensor.value / tensor.weight, np.float32)
    return np.asarray(tensor.value)


@dataclass(frozen=True)
class Result:
    """An evaluation that is over."""

    steps: int
    """Training steps when it began."""
    metrics: Mapping[str, float]


class _Schedule:
    """When an evaluation is due: each ``every`` steps, and once when all training is done."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._next = every
        self.final_begun = False

    def due(self, steps: int, *, trained: bool) -> bool:
        """Whether one is to begin now. Said once for each; several missed ones are one."""
        if trained:
            due, self.final_begun = not self.final_begun, True
            return due
        if self._every and steps >= self._next:
            self._next = (steps // self._every + 1) * self._every
            return True
        return False

    def restore(self, steps: int) -> None:
        """Training is at ``steps`` and goes on from there."""
        self.final_begun = False
        self._next = (steps // self._every + 1) * self._every if self._every else 0


@dataclass
class _Running:
    steps: int
    tasks: Pass
    states: MetricStates
    summary: Pass | None = None


class Evaluations:
    """The evaluations of a job, one at a time.

    Args:
        space: the tasks of the evaluation data.
        every: training steps between two of them; 0: only the last one.
        lease_ids: numbers for leases; shared by the queues of a job.
        timeout_s: see :class:`master.tasks.TaskQueue`.
    """

    def __init__(
        self, space: TaskSpace, *, every: int, lease_ids: Iterator[int], timeout_s: float
    ) -> None:
        self.space = space
        self.results: list[Result] = []
        self._schedule = _Schedule(every)
        self._lease_ids = lease_ids
        self._timeout_s = timeout_s
        self._count = 0
        self._running: _Running | None = None

    @property
    def complete(self) -> bool:
        """The final evaluation is over."""
        return self._schedule.final_begun and self._running is None

    def passes(self) -> list[Pass]:
        """What workers can lease for the evaluation that runs."""
        running = self._running
        if running is None:
            return []
        return [running.tasks] if running.summary is None else [running.summary]

    @property
    def queue(self) -> TaskQueue | None:
        """The tasks of the evaluation that runs."""
        return self._running.tasks.queue if self._running is not None else None

    @property
    def records_done(self) -> int:
        """Records of the running evaluation that are done; all of them once the last is over."""
        if self._running is not None:
            return self._running.tasks.queue.records_done
        return self.space.total_records if self.complete else 0

    def tick(self, steps: int, *, trained: bool) -> Result | None:
        """Begins one that is due, and returns the result of one that ended."""
        running = self._running
        if running is None:
            if self._schedule.due(steps, trained=trained):
                self._count += 1
                queue = TaskQueue(self.space, lease_ids=self._lease_ids, timeout_s=self._timeout_s)
                tasks = Pass(pb.TASK_EVALUATE, queue, self._count)
                self._running = _Running(steps, tasks, MetricStates())
            return None
        if not running.tasks.queue.complete:
            return None
        if running.states.has_objects and running.summary is None:
            running.summary = errand(
                pb.TASK_SUMMARIZE,
                "summary",
                lease_ids=self._lease_ids,
                timeout_s=self._timeout_s,
                evaluation=self._count,
                states=running.states.objects(),
            )
        if running.states.has_objects:
            return None
        return self._end(running, {})

    def evaluated(self, task_id: int, states: Iterable[pb.MetricState]) -> None:
        """A task of the running evaluation is done."""
        assert self._running is not None
        self._running.states.add(task_id, states)

    def summarized(self, values: Mapping[str, float]) -> Result:
        """The values of the metric objects are there: the evaluation is over."""
        assert self._running is not None
        return self._end(self._running, values)

    def restore(self, steps: int) -> None:
        """Training went back to ``steps``: what was evaluated later, and what runs, is void."""
        self._running = None
        self.results = [r for r in self.results if r.steps <= steps]
        self._schedule.restore(steps)

    def _end(self, running: _Running, values: Mapping[str, float]) -> Result:
        result = Result(running.steps, {**running.states.means(), **values})
        self.results.append(result)
        self._running = None
        return result
