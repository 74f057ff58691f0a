"""What a person reads whose model or loss cannot take what feed gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.engine.servers.trained import contract
from torch_edl.config import DataConfig
from torch_edl.data.batch import slice_tensors
from torch_edl.errors import UserCodeError
from torch_edl.interfaces import Batch
from torch_edl.pytorch.datasets import TorchDatasets
from torch_edl.pytorch.step import Step


def step(model: nn.Module, loss: Any = None) -> Step:
    made = contract(model, torch.optim.SGD, loss or nn.MSELoss())
    return Step(made, model, on_nan="stop", log_layers="")


def batch(features: Any, labels: torch.Tensor) -> Batch:
    return Batch(features, labels, len(labels))


FLOATS, DOUBLES = torch.ones(4, 2), torch.ones(4, 2).double()


def test_numbers_of_float64_are_named_with_what_to_write() -> None:
    trained = step(nn.Linear(2, 2))
    with pytest.raises(
        UserCodeError,
        match=r"features \(4, 2\) float64\); feed returned features of float64, .* \.float\(\)$",
    ):
        trained.loss(batch(DOUBLES, FLOATS))
    with pytest.raises(UserCodeError, match=r"features \(\(4, 2\) float64, \(4, 2\) float32\)"):
        step(nn.Bilinear(2, 2, 1)).loss(batch((DOUBLES, FLOATS), FLOATS))
    matrix = step(nn.Linear(2, 4), lambda labels, predictions: (predictions @ labels).sum())
    with pytest.raises(UserCodeError, match=r"loss raised .*labels of float64.*\.float\(\)$"):
        matrix.loss(batch(FLOATS, DOUBLES))


class Three(nn.Linear):
    def forward(self, x: Any, y: Any, z: Any) -> Any:
        return super().forward(x + y + z)


HINTS = {
    "a tensor too few": (
        Three(2, 2), None, (FLOATS, FLOATS), FLOATS,
        r"; forward wants 3 tensors, feed returned 2$",
    ),
    "another name": (
        Three(2, 2), None, {"x": FLOATS, "y": FLOATS}, FLOATS,
        r"; forward wants x, y, z, feed returned x, y$",
    ),
    "classes": (
        nn.Linear(2, 3), nn.CrossEntropyLoss(), FLOATS, torch.ones(4),
        r"labels \(4,\) float32, .*\); the loss expects class numbers: .* \.long\(\)$",
    ),
    "ids": (
        nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 2)), None, torch.tensor([3, 7]), FLOATS,
        r"the integers of the minibatch are 3 to 7, and 0, the smallest .* has the ids 0 to 4$",
    ),
    "reduction": (
        nn.Linear(2, 3), nn.CrossEntropyLoss(reduction="none"), FLOATS, torch.ones(4).long(),
        r'^loss returned \(4,\) float32; .* reduction="mean", or \.mean\(\)$',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HINTS)
def test_a_usual_mistake_is_named_with_what_to_write(case: str) -> None:
    model, loss, features, labels, said = HINTS[case]
    with pytest.raises(UserCodeError, match=said):
        step(model, loss).loss(batch(features, labels))


def test_nothing_is_said_of_types_where_they_are_not_the_matter() -> None:
    with pytest.raises(UserCodeError, match=r"cannot be multiplied .*\(4, 2\) float64\)$"):
        step(nn.Linear(3, 2).double()).loss(batch(DOUBLES, FLOATS))
    with pytest.raises(UserCodeError, match=r"got Long.* \(features \(4, 2\) int64\)$"):
        step(nn.Linear(2, 2)).loss(batch(FLOATS.long(), FLOATS))


@pytest.mark.filterwarnings("error")
def test_a_column_of_a_table_becomes_a_tensor_that_may_be_written_to() -> None:
    column = np.arange(4)
    column.flags.writeable = False
    part = slice_tensors(column, 1, 3, TorchDatasets(DataConfig()).tensor)
    part += 1
    assert part.tolist() == [2, 3]
    assert column.tolist() == [0, 1, 2, 3]
