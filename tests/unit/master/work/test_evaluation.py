"""When evaluations run, and how metrics merge."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

from master.state.work.evaluation import Evaluations
from master.state.work.tasks import TaskQueue
from torch_edl.config.training import EarlyStop
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.wire import codec
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.metric_states import MetricStates


def mean(name: str, value: float, records: int) -> pb.MetricState:
    return pb.MetricState(name=name, sum=value * records, records=records)


def tensors(records: int = 1, **states: tuple[str, object]) -> pb.MetricState:
    state = pb.MetricState(name="m", object=True, records=records)
    for name, (reduction, value) in states.items():
        state.tensors.add(name=name, reduction=reduction, value=codec.to_proto(np.asarray(value)))
    return state


def merged(states: MetricStates) -> dict[str, object]:
    (only,) = states.objects()
    return {t.name: codec.from_proto(t.value).tolist() for t in only.tensors}


class TestMetricStates:
    def test_means_are_weighted_by_records(self):
        states = MetricStates()
        states.add(0, [mean("loss", 1.0, 10), mean("accuracy", 0.5, 10)])
        states.add(1, [mean("loss", 4.0, 30), mean("accuracy", 1.0, 30)])
        assert states.means() == {"loss": 3.25, "accuracy": 0.875}
        assert not states.has_objects

    def test_every_reduction(self):
        states = MetricStates()
        one = {"s": ("sum", [1, 2]), "h": ("max", 3.0), "l": ("min", 3.0), "m": ("mean", [1.0])}
        two = {"s": ("sum", [10, 20]), "h": ("max", 1.0), "l": ("min", 1.0), "m": ("mean", [5.0])}
        states.add(0, [tensors(1, **one)])
        states.add(1, [tensors(3, **two)])
        assert states.has_objects
        assert merged(states) == {"s": [11, 22], "h": 3.0, "l": 1.0, "m": [4.0]}
        assert states.means() == {}
        assert states.objects()[0].records == 4

    def test_integers_stay_exact(self):
        states = MetricStates()
        big = 2**53 + 1
        states.add(0, [tensors(s=("sum", [big]))])
        states.add(1, [tensors(s=("sum", [big]))])
        assert merged(states) == {"s": [2 * big]}

    def test_cat_is_in_the_order_of_tasks_whoever_came_first(self):
        states = MetricStates()
        states.add(2, [tensors(c=("cat", [5.0, 6.0]))])
        states.add(0, [tensors(c=("cat", 1.0))])
        states.add(1, [tensors(c=("cat", []))])
        assert merged(states) == {"c": [1.0, 5.0, 6.0]}

    def test_what_cannot_be_merged_is_named(self):
        states = MetricStates()
        states.add(0, [tensors(s=("sum", [1.0]))])
        with pytest.raises(UsageError, match=r"metric m.* s .*shapes"):
            states.add(1, [tensors(s=("sum", [1.0, 2.0]))])
        with pytest.raises(UsageError, match="median"):
            MetricStates().add(0, [tensors(s=("median", [1.0]))])


def evaluations(every: int = 0, records: int = 4) -> Evaluations:
    space = TaskSpace([Shard("test", records)], 2)
    new_queue = functools.partial(TaskQueue, lease_ids=itertools.count(1), timeout_s=10)
    return Evaluations(space, every=every, new_queue=new_queue)


def finish(e: Evaluations, value: float) -> None:
    """Does all tasks of the evaluation that runs."""
    (tasks,) = e.queues()
    while lease := tasks.take_next(1, 0.0):
        tasks.complete_lease(lease.id, 0.0)
        e.evaluated(lease.task.id, [mean("loss", value, lease.task.records)])


class TestEvaluations:
    def test_each_crossing_once_and_missed_ones_are_one(self):
        e = evaluations(every=10)
        began = []
        for steps in (0, 9, 11, 12, 45, 46, 50):
            e.tick(steps, trained=False)
            if e.queues():
                began.append(steps)
                finish(e, steps)
                e.tick(steps, trained=False)
        assert began == [11, 45, 50]

    def test_one_at_a_time_and_the_last_after_training(self):
        e = evaluations(every=10)
        e.tick(10, trained=False)
        (first,) = e.queues()
        e.tick(30, trained=False)
        e.tick(40, trained=True)
        assert e.queues() == [first]
        finish(e, 1.0)
        assert e.tick(40, trained=True).steps == 10
        e.tick(40, trained=True)
        finish(e, 2.0)
        assert e.tick(40, trained=True).steps == 40
        assert e.complete

    def test_objects_are_summarized_by_a_worker(self):
        e = evaluations(records=2)
        e.tick(7, trained=True)
        (tasks,) = e.queues()
        lease = tasks.take_next(1, 0.0)
        tasks.complete_lease(lease.id, 0.0)
        e.evaluated(0, [tensors(2, s=("sum", [3.0])), mean("loss", 0.5, 2)])
        assert e.tick(7, trained=True) is None
        (summary,) = e.queues()
        message = summary.message(summary.take_next(1, 0.0))
        assert message.kind == pb.TASK_SUMMARIZE
        assert [s.name for s in message.states] == ["m"]
        result = e.summarized({"m": 9.0})
        assert result.metrics == {"loss": 0.5, "m": 9.0}
        assert e.complete

    def test_going_back_voids_what_came_later(self):
        e = evaluations(every=10)
        for steps in (10, 20):
            e.tick(steps, trained=False)
            finish(e, 1.0)
            e.tick(steps, trained=False)
        e.tick(30, trained=True)
        assert not e.complete
        e.restore(15, 0)
        assert [r.steps for r in e.results] == [10]
        assert e.queues() == []
        e.tick(16, trained=False)
        assert e.queues() == []
        e.tick(20, trained=False)
        assert len(e.queues()) == 1


@pytest.mark.parametrize(
    ("rule", "values", "stops"),
    [
        ("auc:2", [0.5, 0.6, 0.6], False),
        ("auc:2", [0.5, 0.6, 0.6, 0.55], True),
        ("loss:1", [0.5, 0.6], True),
        ("loss:1", [0.5, 0.4, 0.3], False),
        ("mean_error:1:max", [0.5, 0.6], False),
        ("auc:1:min", [0.5, 0.6], True),
        ("auc:2", [math.nan, 0.4, math.nan], False),
        ("auc:2", [math.nan, 0.4, math.nan, math.nan], True),
    ],
)
def test_the_training_stops_where_so_many_epochs_are_no_better(rule, values, stops):
    assert EarlyStop.of(rule).is_due(values) is stops


@pytest.mark.parametrize("text", ["auc", "auc:0", "auc:x", ":3", "auc:3:up"])
def test_a_rule_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match=f"--early-stop {text}: expected a metric"):
        EarlyStop.of(text)
