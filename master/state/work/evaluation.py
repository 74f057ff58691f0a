"""Evaluations of a job: when one is due, and its results. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from master.state.work.leases import Lease
from master.state.work.tasks import TaskQueue
from torch_edl.data.task_space import TaskSpace, one_off
from torch_edl.events import ModelEvaluated
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.metric_states import MetricStates

# Upper bound on the metrics of a running evaluation in the stored state, in bytes.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one evaluation."""

    steps: int
    """Training steps of the job when the evaluation began; 0 if the job only evaluates."""
    metrics: Mapping[str, float]
    """Values by name of the metric."""

    @property
    def event(self) -> ModelEvaluated:
        """The event that reports the result."""
        values = {n: v if math.isfinite(v) else None for n, v in self.metrics.items()}
        return ModelEvaluated(steps=self.steps, metrics=values)


@dataclass
class _Running:
    steps: int
    tasks: TaskQueue
    states: MetricStates
    summary: TaskQueue | None = None


class Evaluations:
    """The evaluations of a job, one at a time.

    Args:
        space: the tasks of the evaluation data.
        every: training steps between evaluations; 0 for the last one only.
        per_epoch: evaluate at the end of each epoch.
        new_queue: makes a queue of tasks.
    """

    def __init__(
        self,
        space: TaskSpace,
        *,
        every: int,
        new_queue: Callable[..., TaskQueue],
        per_epoch: bool = False,
    ) -> None:
        self.space = space
        self.results: list[EvaluationResult] = []
        """Results so far, oldest first."""
        self._every = every
        self._next = every  # training steps
        self.per_epoch = per_epoch
        self.holds = False
        """True while the next epoch waits until the evaluated model is written."""
        self._skipped = 0  # epochs without an evaluation of this job
        self._final_begun = False
        self._new_queue = new_queue
        self._running: _Running | None = None

    @property
    def complete(self) -> bool:
        """True once the final evaluation is over."""
        return self._final_begun and self._running is None

    @property
    def epochs_over(self) -> int:
        """Number of epochs whose evaluation is over, or that never get one."""
        return self._skipped + len(self.results)

    @property
    def epochs_open(self) -> int:
        """Number of epochs that may be trained now."""
        return self.epochs_over + (not self.holds)

    def is_pending(self, epochs: int) -> bool:
        """Return whether an evaluation is due or runs at the end of the first ``epochs`` epochs."""
        return self.per_epoch and self.epochs_over < epochs

    def queues(self) -> list[TaskQueue]:
        """Return the queues of the running evaluation that workers can lease from."""
        running = self._running
        if running is None:
            return []
        return [running.tasks] if running.summary is None else [running.summary]

    @property
    def queue(self) -> TaskQueue | None:
        """Tasks of the running evaluation; None if none runs."""
        return self._running.tasks if self._running is not None else None

    @property
    def records_done(self) -> int:
        """Records that the running evaluation has done; all of them once the final one is over."""
        if self._running is not None:
            return self._running.tasks.records_done
        return self.space.total_records if self.complete else 0

    def _due(self, steps: int, *, trained: bool, epochs: int) -> bool:
        """Return whether an evaluation is to begin, and mark it as begun. Several missed ones count
        as one."""
        if self.is_pending(epochs):
            self._final_begun = self._final_begun or trained
            return True
        if trained:
            due, self._final_begun = not self._final_begun, True
            return due and not self._has(steps)
        due = bool(self._every) and steps >= self._next
        if due:
            self._go_on_from(steps)
        return due

    def _has(self, steps: int) -> bool:
        """Return whether the evaluation of the last epoch already covers the current model."""
        return self.per_epoch and bool(self.results) and self.results[-1].steps >= steps

    def _go_on_from(self, steps: int) -> None:
        self._next = (steps // self._every + 1) * self._every if self._every else 0

    def tick(self, steps: int, *, trained: bool, epochs: int = 0) -> EvaluationResult | None:
        """Begin an evaluation that is due after ``epochs`` epochs. Returns the result of one that
        ended, else None."""
        running = self._running
        if running is None:
            if self._due(steps, trained=trained, epochs=epochs):
                tasks = self._new_queue(self.space, kind=pb.TASK_EVALUATE)
                self._running = _Running(steps, tasks, MetricStates())
            return None
        if not running.tasks.complete:
            return None
        if running.states.has_objects and running.summary is None:
            running.summary = self._summary(running)
        if running.states.has_objects:
            return None
        return self._end(running, {})

    def evaluated(self, task_id: int, states: Iterable[pb.MetricState]) -> None:
        """Add the metrics of a task of the running evaluation."""
        assert self._running is not None
        self._running.states.add(task_id, states)

    def summarized(self, values: Mapping[str, float]) -> EvaluationResult:
        """End the running evaluation with the values of its metric objects."""
        assert self._running is not None
        return self._end(self._running, values)

    def trial(self, batch_size: int) -> pb.LeaseMessage:
        """Return the first minibatch, which workers try before they train."""
        task = self.space.task(0)
        first = replace(task, end=min(task.end, task.start + batch_size))
        queue = self._new_queue(self.space, kind=pb.TASK_EVALUATE)
        return queue.message(Lease(id=0, task=first, worker=-1, offset=0, retried=False))

    def restore(self, steps: int, epochs: int) -> None:
        """Discard the running evaluation and later results: training is back at ``steps`` and
        ``epochs``."""
        self._running = None
        self.results = [r for r in self.results if r.steps <= steps]
        self._skipped = max(0, epochs - len(self.results))
        self.holds = self.holds and bool(self.results) and self.results[-1].steps == steps
        self._final_begun = False
        self._go_on_from(steps)

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values. An evaluation with more than a
        megabyte of metrics is left out: a restarted master begins it again."""
        running = self._running
        states = running.states.to_state(_MOST_BYTES) if running is not None else None
        return {
            "results": [[result.steps, dict(result.metrics)] for result in self.results],
            "next": self._next,
            "skipped": self._skipped,
            "holds": self.holds,
            "final_begun": self._final_begun,
            "running": None if running is None else running.steps,
            "states": states,
            "tasks": running.tasks.to_state() if running is not None else None,
            "summary": running.summary.to_state() if running and running.summary else None,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.results = [EvaluationResult(steps, metrics) for steps, metrics in state["results"]]
        self._next, self._final_begun = state["next"], state["final_begun"]
        self._skipped, self.holds = state["skipped"], state["holds"]
        if state["running"] is None:
            return
        tasks = self._new_queue(self.space, kind=pb.TASK_EVALUATE)
        running = self._running = _Running(state["running"], tasks, MetricStates())
        if state["states"] is None:
            return
        running.states = MetricStates.from_state(state["states"])
        tasks.from_state(state["tasks"], now)
        if state["summary"] is not None:
            running.summary = self._summary(running)
            running.summary.from_state(state["summary"], now)

    def _summary(self, running: _Running) -> TaskQueue:
        return self._new_queue(
            one_off("summary"), kind=pb.TASK_SUMMARIZE, states=running.states.objects()
        )

    def _end(self, running: _Running, values: Mapping[str, float]) -> EvaluationResult:
        result = EvaluationResult(running.steps, {**running.states.means(), **values})
        self.results.append(result)
        self._running = None
        return result
