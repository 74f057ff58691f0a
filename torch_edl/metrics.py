"""Metrics whose state can be merged, so that a figure over many workers equals that of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from torch_edl.errors import UsageError

Reduction = Literal["sum", "max", "min"]
"""How two workers' values of one state tensor become one, element by element."""


@runtime_checkable
class Metric(Protocol):
    """What ``eval_metrics_fn`` may return beside plain functions.

    Every worker updates its own object; the states are then reduced, tensor by tensor and in any
    order, and merged into a fresh object, whose ``compute`` is the figure of the job. ``state`` of
    a fresh object is the neutral element.
    """

    @property
    def reductions(self) -> Mapping[str, Reduction]:
        """The reduction of each tensor that ``state`` returns."""
        ...

    def update(self, labels: Tensor, predictions: Tensor) -> None:
        """Count a minibatch in."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All that was counted, as tensors whose shapes do not depend on the data."""
        ...

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Count another object's ``state`` in."""
        ...

    def compute(self) -> float:
        """The figure over everything counted."""
        ...

    def reset(self) -> None:
        """Forget everything counted."""
        ...


class AUC:
    """Area under the ROC curve, by a histogram of the scores of each class.

    The counts are integers, so any split of the records over workers gives the same figure, bit
    for bit. Scores are binned on the logit scale, evenly in ``x / (1 + |x|)``: with the default
    65,536 bins a bin is 3e-5 wide at logit 0 and 2e-3 at 7, and the figure is within 1e-4 of the
    exact one for scores that are not all packed into a few bins (pairs in one bin count half).

    ``scores`` says what the predictions are: ``"logits"`` (any real number; also right for a score
    that is merely monotone in the probability) or ``"probabilities"`` (0 to 1). One object takes
    1 MB and so does its state.
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
        """Count ``n`` records: labels of 0 and 1 (any dtype) and predictions, ``n`` elements each.

        Raises UsageError where the numbers of elements differ, a label is neither 0 nor 1, or a
        prediction is NaN or, with ``scores="probabilities"``, outside 0 to 1.
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
        # x / (1 + |x|) without its NaN at infinity, which the logit of an exact 0 or 1 is.
        squashed = torch.sign(score) * (1 - 1 / (1 + score.abs()))
        place = torch.clamp((squashed * half + half).to(torch.int64), 0, self._bins - 1)
        place += positive.to(torch.int64) * self._bins
        self._counts += torch.bincount(place, minlength=2 * self._bins).view(2, self._bins)

    def state(self) -> dict[str, Tensor]:
        """``counts``: int64 (2, bins), of the negatives and of the positives; a copy."""
        return {"counts": self._counts.clone()}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        counts = state["counts"]
        if counts.shape != self._counts.shape:
            raise UsageError(
                f"counts {tuple(counts.shape)}: this AUC has {tuple(self._counts.shape)}; "
                "merge objects with the same number of bins"
            )
        self._counts += counts.to("cpu", torch.int64)

    def compute(self) -> float:
        """The probability that a positive scores above a negative; NaN while a class is missing."""
        negatives, positives = self._counts.to(torch.float64)
        pairs = float(negatives.sum() * positives.sum())
        if pairs == 0:
            return float("nan")
        below = torch.cumsum(negatives, 0) - negatives
        return float((positives * (below + negatives / 2)).sum()) / pairs

    def reset(self) -> None:
        self._counts.zero_()
