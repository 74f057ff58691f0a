"""Whose order a loss or a metric is called in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_edl.errors import ContractError
from torch_edl.interfaces import Batch
from torch_edl.metrics import AUC
from torch_edl.pytorch.contract import TorchValues
from torch_edl.training.contract.argument_order import labels_first
from torch_edl.training.contract.functions import UserMetric
from torch_edl.training.task_results import TaskMetrics, summarize
from torch_edl.wire.metric_states import MetricStates

LABELS = torch.tensor([0.0, 1.0, 1.0])
LOGITS = torch.tensor([2.0, -1.0, 0.5])
RIGHT = float(F.binary_cross_entropy_with_logits(LOGITS, LABELS))


def ours(labels: Tensor, predictions: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(predictions, labels)


def theirs(predictions: Tensor, labels: Tensor) -> Tensor:
    return ours(labels, predictions)


class Own(nn.Module):
    """Neither name tells: called as torch's modules are."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return ours(b, a)


class OwnLabelsFirst(nn.Module):
    def forward(self, target: Tensor, logits: Tensor) -> Tensor:
        return ours(target, logits)


@pytest.mark.parametrize(
    ("loss", "order"),
    [
        (nn.BCEWithLogitsLoss(), "(predictions, labels)"),
        (F.binary_cross_entropy_with_logits, "(predictions, labels)"),
        (functools.partial(F.binary_cross_entropy_with_logits), "(predictions, labels)"),
        (ours, "(labels, predictions)"),
        (theirs, "(predictions, labels)"),
        (functools.partial(theirs), "(predictions, labels)"),
        (functools.wraps(theirs)(lambda *args: theirs(*args)), "(predictions, labels)"),
        (Own(), "(predictions, labels)"),
        (OwnLabelsFirst(), "(labels, predictions)"),
        (lambda y_pred, y_true: theirs(y_pred, y_true), "(predictions, labels)"),
        (lambda y_true, y_score: ours(y_true, y_score), "(labels, predictions)"),
        # One name is enough.
        (lambda x, y: theirs(x, y), "(predictions, labels)"),
        (lambda y, x: ours(y, x), "(labels, predictions)"),
        (lambda output, _: theirs(output, _), "(predictions, labels)"),
        # These tell nothing: the documented order.
        (lambda a, b: ours(a, b), "(labels, predictions)"),
        (lambda y, t: ours(y, t), "(labels, predictions)"),
        (lambda target_scores, b: ours(target_scores, b), "(labels, predictions)"),
        (lambda *both: ours(*both), "(labels, predictions)"),
    ],
)
def test_the_order(loss: Callable[[Any, Any], Any], order: str) -> None:
    made = labels_first(loss)
    assert made.order == order, made.reason
    assert float(made(LABELS, LOGITS)) == RIGHT
    assert labels_first(made) is made


@pytest.mark.parametrize(
    ("compiler", "loss", "order"),
    [
        ("script", ours, "(labels, predictions)"),
        ("script", theirs, "(predictions, labels)"),
        ("script", OwnLabelsFirst(), "(labels, predictions)"),
        ("script", nn.BCEWithLogitsLoss(), "(predictions, labels)"),
        ("compile", OwnLabelsFirst(), "(labels, predictions)"),
        ("compile", nn.BCEWithLogitsLoss(), "(predictions, labels)"),
    ],
)
def test_the_order_of_what_torch_has_compiled(
    compiler: str, loss: Callable[[Any, Any], Any], order: str
) -> None:
    if compiler == "script":
        test_the_order(torch.jit.script(loss), order)
    else:
        test_the_order(torch.compile(loss, backend="eager"), order)


def test_the_reason_names_what_it_rests_on() -> None:
    assert labels_first(nn.MSELoss()).reason == "the order of torch"
    assert labels_first(nn.MSELoss()).name == "MSELoss"
    assert labels_first(theirs).reason == "it takes (predictions, labels)"
    assert labels_first(lambda a, b: a).reason == "(a, b) do not tell; labels come first"
    assert labels_first(Own()).reason == "(a, b) do not tell; as modules of torch"


def test_an_evaluation_calls_each_metric_in_its_order() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metrics = {
        "torch": nn.BCEWithLogitsLoss(),
        "theirs": theirs,
        "functional": lambda y, p: torchmetrics.functional.mean_squared_error(p, y),
        "auc": AUC(),
        "object": torchmetrics.MeanSquaredError(),
    }
    made = {name: UserMetric(metric) for name, metric in metrics.items()}
    measured = TaskMetrics(nn.BCEWithLogitsLoss(), made, TorchValues())
    measured.update(Batch(None, LABELS, 3), LOGITS)
    states = {state.name: state for state in measured.states()}
    for name in ("loss", "torch", "theirs"):
        assert states[name].sum / states[name].records == pytest.approx(RIGHT)
    expected = AUC()
    expected.update(LABELS, LOGITS)
    assert metrics["auc"].compute() == expected.compute()


def test_a_metric_of_groups_gets_the_group_of_each_record() -> None:
    """Its states are lists without a reduction, which torchmetrics itself concatenates."""
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    groups, clicks = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1, 0, 0, 1, 0])
    scores = torch.tensor([0.9, 0.1, 0.8, 0.3, 0.2])
    labels = {"click": clicks, "indexes": groups}

    def made(name: str) -> tuple[TaskMetrics, UserMetric]:
        metric = UserMetric(retrieval.RetrievalMRR(), "click" if name == "click_mrr" else "")
        return TaskMetrics(lambda y, p: 0.0, {name: metric}, TorchValues()), metric

    for name in ("click_mrr", "mrr"):
        states = []
        # A group may be in the minibatches of two workers.
        for part in (slice(0, 3), slice(3, 5)):
            measured, _ = made(name)
            given = {key: value[part] for key, value in labels.items()}
            outputs = {"click": scores[part]} if name == "click_mrr" else scores[part]
            measured.update(Batch(None, given, 3), outputs)
            states.append({s.name: s for s in measured.states()}[name])
        merged = MetricStates()
        for number, state in enumerate(states):
            merged.add(number, [state])
        _, metric = made(name)
        values = summarize({name: metric}, [merged.objects()[0]], TorchValues())
        assert values == {name: pytest.approx((1 + 1 / 2) / 2)}
    measured, _ = made("mrr")
    with pytest.raises(ContractError, match=r"'mrr' ranks .* of each group, and the labels are"):
        measured.update(Batch(None, clicks, 5), scores)
