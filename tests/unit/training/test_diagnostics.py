"""A loss that is not finite because its minibatch is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_edl.interfaces import Batch
from torch_edl.pytorch.contract import TorchValues
from torch_edl.training.diagnostics import cause

X = torch.zeros(4, 3)
BAD = X.clone()
BAD[2, 1] = float("nan")
BAD[3, 0] = float("inf")


@pytest.mark.parametrize(
    ("features", "labels", "text"),
    [
        ({"age": X, "income": BAD}, X, "the input features['income'][2, 1] is nan (samples"),
        ((X, BAD), X, "the input features[1][2, 1] is nan"),
        (BAD, X, "of this minibatch with such a value: 2 of 4)"),
        (X, BAD[:, 0], "the input labels[3] is inf (samples of this minibatch with"),
        (X.long(), X, ""),
        ({"text": ["a"], "x": X}, None, ""),
    ],
)
def test_what_is_not_finite_is_named(features: Any, labels: Any, text: str) -> None:
    found, sample = cause(Batch(features, labels, 4), TorchValues().array)
    assert text in found
    assert bool(found) == bool(text)
    assert sample == ((3 if labels is not X else 2) if text else None)
