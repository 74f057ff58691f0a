"""What the trainer class refuses, and what it says then."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import torch_edl
import torch_edl.api.evaluate as evaluating
from tests.unit.api.fitting import (
    BATCH,
    N,
    Stream,
    accuracy,
    data,
    fit,
    net,
    parameters,
    plain_loop,
    trainer,
)
from torch_edl.api.inputs import moved
from torch_edl.errors import UsageError


def plain_loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(predictions, labels)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.0),
        plain_loss,
        lambda y, p: F.cross_entropy(p, y),
        lambda logits, labels: F.cross_entropy(logits, labels),
    ],
)
def test_a_loss_in_torchs_order_or_in_ours(loss: Any) -> None:
    made = trainer(loss=loss)
    fit(made)
    assert torch.equal(parameters(made.model), parameters(plain_loop()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": F.relu, "optimizer": torch.optim.Adam}, "expected a torch.nn.Module"),
        ({"optimizer": torch.optim.Adam}, "such as torch.optim.Adam.*not Adam"),
        ({"optimizer": torch.optim.SGD(net().parameters(), 0.1)}, "none of the parameters"),
        ({"loss": nn.CrossEntropyLoss}, r"loss is the class .*write CrossEntropyLoss\(\)"),
        ({"loss": "mse"}, "expected a function"),
        ({"metrics": {"m": nn.MSELoss}}, "metric 'm' is the class MSELoss"),
        ({"metrics": {"m": 3}}, "metric 'm': expected a function .*, not int"),
        ({"metrics": {"loss": accuracy}}, "always there"),
        ({"precision": "fp16"}, "needs a GPU"),
        ({"precision": "tf32"}, "precision='tf32'"),
        ({"scheduler_interval": "batch"}, "'step' or 'epoch'"),
        ({"clip_grad_norm": -1.0}, "0 or more"),
    ],
)
def test_what_cannot_work_is_said_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainer(**options)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (TensorDataset(torch.zeros(0, 4), torch.zeros(0)), {}, "the dataset is empty"),
        (TensorDataset(torch.zeros(8, 4)), {}, "a batch of the dataset is list.*with 'labels'"),
        (5, {}, "dataset int"),
        (data(), {"epochs": 0}, "epochs=0"),
        (data(), {"batch_size": 0}, "batch_size 0"),
        (data(), {"eval_dataset": 5}, "dataset int"),
        (data(), {"eval_dataset": data(), "eval_batch_size": -1}, "batch_size -1"),
        (Stream(), {"shuffle": True}, "order of its own"),
        (Stream(), {"num_workers": 2}, "num_workers"),
    ],
)
def test_data_that_cannot_work(dataset: Any, options: dict[str, Any], message: str) -> None:
    made = trainer()
    with pytest.raises(UsageError, match=message):
        fit(made, dataset, **options)
    assert made.job.step == 0


def test_a_loss_for_each_record_is_refused() -> None:
    made = trainer(loss=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(UsageError, match=r"loss returned \(8,\) float32; expected a scalar"):
        fit(made)


def test_nothing_to_evaluate() -> None:
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0))
    for call in (trainer().evaluate, trainer().predict):
        with pytest.raises(UsageError, match="the dataset is empty"):
            call(empty)
    with pytest.raises(UsageError, match="the suffix selects"):
        trainer().save("model.bin")


def test_a_metric_that_keeps_too_many_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    made = trainer(metrics={"auc": torchmetrics.classification.MulticlassAUROC(2)})
    monkeypatch.setattr(evaluating, "_MOST_STATE_BYTES", 16 * N)  # two scores and a label
    made.evaluate(data(), batch_size=30)
    monkeypatch.setattr(evaluating, "_MOST_STATE_BYTES", 8 * N)
    with pytest.raises(UsageError, match=r"metric auc: .* bytes in .* may have 800; .*thresholds="):
        made.evaluate(data(), batch_size=30)


def test_a_job_of_ones_own() -> None:
    job = torch_edl.init(seed=3)
    try:
        made = trainer(job=job)
        assert made.job is job
        fit(made)
        assert job.step == 2 * -(-N // BATCH)
        with pytest.raises(UsageError, match=r"torch_edl.init\(\)"):
            trainer(job=job, seed=1)
        again = trainer(job=job)  # the cell of a notebook, once more
        fit(again)
        assert job.step == 2 * -(-N // BATCH)
        trainer()  # of its own job
    finally:
        job.close()


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (lambda labels, predictions: None, "metric 'mine' returned NoneType; expected a number"),
        (lambda labels, predictions: {"a": 1}, "metric 'mine' returned"),
        (lambda labels, predictions: "high", "metric 'mine' returned str; expected a number"),
    ],
)
def test_a_metric_that_returns_no_number_is_named(metric: Any, found: str) -> None:
    with pytest.raises(UsageError, match=found):
        trainer(metrics={"mine": metric}).evaluate(data(), batch_size=30)


class Inner(NamedTuple):
    x: Any
    scale: float


def test_a_named_tuple_within_a_batch_is_moved() -> None:
    batch = {"parts": [Inner(torch.zeros(2), 2.0)], "labels": torch.zeros(2)}
    found = moved(batch, torch.device("meta"))
    assert isinstance(found["parts"][0], Inner)
    assert found["parts"][0].x.is_meta
    assert found["parts"][0].scale == 2.0


def test_a_job_shows_its_rank_and_step(jobs: Any) -> None:
    job = jobs()
    assert repr(job) == "<torch_edl job: rank 0 of 1, step 0>"
    job.close()
    assert repr(job) == "<torch_edl job: rank 0 of 1, step 0, closed>"
