"""The AUC of merged histograms against the exact one, by ranks."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from torch_edl.errors import UsageError
from torch_edl.metrics import AUC, Metric


def exact_auc(labels: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> float:
    """By mid-ranks, as Mann and Whitney count it."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    positives = labels.sum()
    negatives = len(labels) - positives
    return float(
        (rank[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    )


def clicks(rate_logit: float, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    logit = rng.normal(rate_logit, spread, 200_000)
    label = rng.random(len(logit)) < 1 / (1 + np.exp(-logit))
    return torch.from_numpy(label.astype(np.float32)), torch.from_numpy(logit)


def test_is_a_metric() -> None:
    assert isinstance(AUC(), Metric)
    assert set(AUC().reductions) == set(AUC().state())


@pytest.mark.parametrize(("rate", "spread"), [(0, 1), (-6, 1), (4, 3), (0, 0.02), (0, 60)])
@pytest.mark.parametrize("scores", ["logits", "probabilities"])
def test_close_to_the_exact_figure(rate: float, spread: float, scores: str) -> None:
    labels, logits = clicks(rate, spread)
    auc = AUC(scores)  # type: ignore[arg-type]
    auc.update(labels, torch.sigmoid(logits) if scores == "probabilities" else logits)
    assert auc.compute() == pytest.approx(exact_auc(labels.numpy(), logits.numpy()), abs=1e-4)


def test_any_split_over_workers_gives_the_same_bits() -> None:
    labels, logits = clicks(-1, 1)
    whole = AUC()
    whole.update(labels, logits)
    merged = AUC()
    for part in torch.randperm(len(labels)).tensor_split(7):
        worker = AUC()
        worker.update(labels[part], logits[part])
        merged.merge(worker.state())
    assert merged.compute() == whole.compute()


def test_separated_tied_and_reversed() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    for scores, expected in [
        ([-5.0, -1.0, 1.0, 5.0], 1.0),
        ([0.3, 0.3, 0.3, 0.3], 0.5),
        ([float("inf"), 1.0, -1.0, float("-inf")], 0.0),
    ]:
        auc = AUC()
        auc.update(labels.view(4, 1), torch.tensor(scores))
        assert auc.compute() == expected


def test_one_class_only_is_nan_and_reset_forgets() -> None:
    auc = AUC()
    auc.update(torch.ones(3), torch.zeros(3))
    assert np.isnan(auc.compute())
    auc.reset()
    assert int(auc.state()["counts"].sum()) == 0


def test_state_is_a_copy() -> None:
    auc = AUC()
    state = auc.state()
    auc.update(torch.ones(3), torch.zeros(3))
    assert int(state["counts"].sum()) == 0


@pytest.mark.parametrize(
    ("labels", "predictions", "says"),
    [
        ([0.0, 1.0], [0.1], "one score for each label"),
        ([0.0, 2.0], [0.1, 0.2], "0 and 1 only"),
        ([0.0, 1.0], [0.1, float("nan")], "NaN"),
    ],
)
def test_refuses(labels: list[float], predictions: list[float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        AUC().update(torch.tensor(labels), torch.tensor(predictions))


def test_refuses_logits_as_probabilities_and_foreign_bins() -> None:
    with pytest.raises(UsageError, match="scores='logits'"):
        AUC("probabilities").update(torch.ones(1), torch.tensor([1.5]))
    with pytest.raises(UsageError, match="same number of bins"):
        AUC().merge(AUC(bins=8).state())
