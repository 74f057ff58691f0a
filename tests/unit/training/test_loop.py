"""Metrics that count each batch once."""

from __future__ import annotations

import math

import pytest
import torch

from torch_edl.errors import UsageError
from torch_edl.training.loop import Meter


def test_means_are_weighted_by_records() -> None:
    meter = Meter()
    for records, loss in ((3, 1.0), (1, 5.0)):
        meter.open(records)
        meter.note({"loss": loss})
        meter.settle(counted=True)
    assert meter.take() == {"loss": 2.0}
    assert meter.take() == {}


def test_the_mean_of_nothing_is_nan_and_another_name_a_mistake() -> None:
    meter = Meter()
    assert math.isnan(meter.take()["loss"])  # an epoch that was trained before a job resumed
    meter.open(1)
    meter.note({"loss": 1.0})
    meter.settle(counted=True)
    with pytest.raises(KeyError):
        meter.take()["los"]


def test_an_update_that_failed_leaves_nothing() -> None:
    meter = Meter()
    meter.open(2)
    meter.note({"loss": 100.0})
    meter.settle(counted=False)
    meter.open(4)
    meter.note({"loss": 1.0})
    meter.settle(counted=True)
    assert meter.take() == {"loss": 1.0}


def test_all_minibatches_of_an_update_count_together() -> None:
    meter = Meter()
    meter.open(3)
    meter.note({"loss": 1.0})
    meter.open(1)
    meter.note({"loss": 5.0})
    assert meter.take() == {}
    meter.settle(counted=True)
    assert meter.take() == {"loss": 2.0}


def test_a_batch_without_records_counts_for_nothing() -> None:
    meter = Meter()
    meter.open(0)
    meter.note({"loss": float("nan")})
    meter.settle(counted=True)
    assert meter.newest == {}
    assert meter.take() == {}


def test_tensors_are_kept_without_their_graph() -> None:
    meter = Meter()
    meter.open(2)
    value = torch.ones(1, requires_grad=True).sum() * 3
    meter.note({"loss": value})
    meter.settle(counted=True)
    assert meter.newest == {"loss": 3.0}
    assert meter.take() == {"loss": 3.0}


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
