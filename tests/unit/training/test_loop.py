"""Metrics that count each batch once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torch_edl.errors import UsageError
from torch_edl.master_client.heartbeat import ACTIVITIES
from torch_edl.training.loop import Meter, Stopwatch

Update = tuple[bool, list[tuple[int, Any]]]
"""Whether an update counts, and the number of records and the loss of each of its batches."""

GRAPH = torch.ones(1, requires_grad=True).sum() * 3


def run(meter: Meter, *updates: Update) -> None:
    for counted, batches in updates:
        for records, loss in batches:
            meter.open(records)
            meter.note({"loss": loss})
        meter.settle(counted=counted)


@pytest.mark.parametrize(
    ("updates", "mean"),
    [
        ([(True, [(3, 1.0)]), (True, [(1, 5.0)])], 2.0),
        ([(True, [(3, 1.0), (1, 5.0)])], 2.0),
        ([(False, [(2, 100.0)]), (True, [(4, 1.0)])], 1.0),
        ([(True, [(0, math.nan)])], None),
        ([(True, [(2, GRAPH)])], 3.0),
    ],
    ids=["by records", "of an update together", "not of a failure", "without records", "tensor"],
)
def test_the_mean_of_what_counts(updates: list[Update], mean: float | None) -> None:
    meter = Meter()
    run(meter, *updates)
    if mean is None:
        assert meter.newest == {}
    else:
        assert float(meter.newest["loss"]) == updates[-1][1][-1][1]
    assert meter.take() == ({} if mean is None else {"loss": mean})
    assert meter.take() == {}


def test_nothing_counts_before_the_update_is_settled() -> None:
    meter = Meter()
    meter.open(3)
    meter.note({"loss": 1.0})
    assert meter.take() == {}


def test_the_mean_of_nothing_is_nan_and_another_name_a_mistake() -> None:
    meter = Meter()
    assert math.isnan(meter.take()["loss"])  # an epoch that was trained before a job resumed
    run(meter, (True, [(1, 1.0)]))
    with pytest.raises(KeyError):
        meter.take()["los"]


def test_the_first_loss_that_is_not_finite_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    meters = [Meter(warns=True), Meter()]
    for meter in meters:
        for values in ({"auc": math.nan}, {"loss": 1.0}, {"loss": math.nan}, {"loss": math.nan}):
            meter.open(2)
            meter.note(values)
            meter.settle(counted=True)
            meter.take()
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["the loss is nan"]


@pytest.mark.parametrize("value", [torch.ones(2), "fast", None, 10**400])
def test_what_is_no_number_is_refused_where_it_is_noted(value: object) -> None:
    with pytest.raises(UsageError, match=r"log\(speed=...\): .*; give a number"):
        Meter().note({"speed": value})


def test_the_time_of_a_loop_is_divided_among_its_activities() -> None:
    times = iter([10.0, 11.0, 11.5, 14.5, 15.0, 15.25])
    seconds = dict.fromkeys(ACTIVITIES, 0.0)
    watch = Stopwatch(seconds, lambda: next(times))
    for activity in ("data", "pull", "compute", "push", "data"):
        watch.end(activity)
    assert seconds == {"data": 1.25, "pull": 0.5, "compute": 3.0, "push": 0.5}
