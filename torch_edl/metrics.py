"""Metrics with states that can be merged, so that the result does not depend on the number of
workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from torch_edl.errors import UsageError

Reduction = Literal["sum", "max", "min"]
"""Operation that merges the values of a state tensor from two workers, element by element."""


@runtime_checkable
class Metric(Protocol):
    """A metric object, which ``eval_metrics_fn`` may return in place of a function.

    Every worker updates its own object. The states are then reduced, tensor by tensor and in any
    order, and merged into a new object, whose ``compute`` returns the result of the job. The
    ``state`` of a new object must be the neutral element of its reductions.
    """

    @property
    def reductions(self) -> Mapping[str, Reduction]:
        """The reduction of each tensor of ``state``, by name."""
        ...

    def update(self, labels: Tensor, predictions: Tensor) -> None:
        """Add a minibatch."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the state as tensors by name. Their shapes must not depend on the data."""
        ...

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add the ``state`` of another object."""
        ...

    def compute(self) -> float:
        """Return the value of the metric over all added minibatches and states."""
        ...

    def reset(self) -> None:
        """Return to the state of a new object."""
        ...


class AUC:
    """Area under the ROC curve, computed from a histogram of the scores of each class.

    The counts are integers, so the result is the same, bit for bit, for any distribution of the
    records over workers. Scores are binned on the logit scale, evenly in ``x / (1 + |x|)``. With
    the default of 65,536 bins, a bin is 3e-5 wide at logit 0 and 2e-3 wide at logit 7. The result
    is within 1e-4 of the exact value unless most scores are in a few bins (a pair of records in the
    same bin counts half). An object and its state take 1 MB each.

    Args:
        scores: type of the predictions: ``"logits"`` (any real numbers, also scores that are only
            monotone in the probability) or ``"probabilities"`` (0 to 1).
        bins: number of bins; at least 2.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self, scores: Literal["logits", "probabilities"] = "logits", *, bins: int = 65_536
    ) -> None:
        if scores not in ("logits", "probabilities"):
            raise UsageError(f"scores={scores!r}: must be 'logits' or 'probabilities'")
        if bins < 2:
            raise UsageError(f"bins={bins}: must be at least 2")
        self._scores = scores
        self._bins = bins
        # Row 0 counts the negatives, row 1 the positives.
        self._counts = torch.zeros(2, bins, dtype=torch.int64)

    @property
    def reductions(self) -> Mapping[str, Reduction]:
        return {"counts": "sum"}

    def update(self, labels: Tensor, predictions: Tensor) -> None:
        """Add ``n`` records.

        Args:
            labels: ``n`` labels of 0 or 1, of any dtype and shape.
            predictions: ``n`` scores.

        Raises:
            UsageError: the numbers of elements differ; a label is neither 0 nor 1; a prediction is
                NaN, or outside 0 to 1 with ``scores="probabilities"``.
        """
        score = predictions.detach().reshape(-1).to("cpu", torch.float64)
        truth = labels.detach().reshape(-1).to("cpu")
        if score.shape != truth.shape:
            raise UsageError(
                f"predictions {tuple(predictions.shape)} against labels {tuple(labels.shape)}: "
                "AUC needs one score for each label"
            )
        positive = truth == 1
        if not bool(torch.all(positive | (truth == 0))):
            wrong = truth[~(positive | (truth == 0))][0].item()
            fix = "map yours to those" if wrong == wrong else "leave records without a label out"
            raise UsageError(f"labels: {wrong}, and AUC takes 0 and 1 only; {fix}")
        if self._scores == "probabilities":
            if not bool(torch.all((score >= 0) & (score <= 1))):
                raise UsageError(
                    "predictions: not all within 0 to 1; use AUC(scores='logits') for raw scores"
                )
            score = torch.logit(score)
        elif bool(torch.isnan(score).any()):
            raise UsageError(
                "predictions: NaN has no rank, so there is no AUC; look at the inputs and the loss"
            )
        half = self._bins / 2
        # x / (1 + |x|), written so that infinity, the logit of an exact 0 or 1, does not give NaN.
        squashed = torch.sign(score) * (1 - 1 / (1 + score.abs()))
        place = torch.clamp((squashed * half + half).to(torch.int64), 0, self._bins - 1)
        place += positive.to(torch.int64) * self._bins
        self._counts += torch.bincount(place, minlength=2 * self._bins).view(2, self._bins)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of ``counts``: int64 (2, bins), negatives in row 0, positives in row 1."""
        return {"counts": self._counts.clone()}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add the ``state`` of another object.

        Raises:
            UsageError: the other object has another number of bins.
        """
        counts = state["counts"]
        if counts.shape != self._counts.shape:
            raise UsageError(
                f"counts {tuple(counts.shape)}: this AUC has {tuple(self._counts.shape)}; "
                "merge objects with the same number of bins"
            )
        self._counts += counts.to("cpu", torch.int64)

    def compute(self) -> float:
        """Return the probability that a positive has a higher score than a negative; NaN if there
        are no records of a class."""
        negatives, positives = self._counts.to(torch.float64)
        pairs = float(negatives.sum() * positives.sum())
        if pairs == 0:
            return float("nan")
        below = torch.cumsum(negatives, 0) - negatives
        return float((positives * (below + negatives / 2)).sum()) / pairs

    def reset(self) -> None:
        """Set all counts to 0."""
        self._counts.zero_()
