"""Parameters of a script that something besides the servers changes are found at the next pull."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.ps_client.partition import DenseSegment
from torch_edl.pytorch.servers.dense import FlatVector, dense_parameters


def served() -> tuple[nn.Module, FlatVector, int]:
    """A model with parameters, buffers, tied weights and halves, as two pulls have left it."""
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2).bfloat16()
    )
    found = dense_parameters(model, torch.optim.SGD(model.parameters(), lr=1.0))
    segments, end = [], 0
    for name, each in found.items():
        if not each.is_exact:
            shape = tuple(each.tensor.shape)
            segments.append(DenseSegment(name, shape, end, each.tensor.numel()))
            end += each.tensor.numel()
    flat = FlatVector(found, segments, lambda n: np.empty(n, np.float32))
    for value in (1.0, np.nan):
        flat.check_unchanged()
        values = np.full(end, 0.5, np.float32)
        values[0] = value
        flat.load(values)
    return model, flat, end


def replace(model: nn.Module) -> None:
    model[2].weight.data = torch.ones(4, 4)  # type: ignore[union-attr, index]


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "clamped": (lambda m: m[0].weight.data.clamp_(-0.1, 0.1), "0.weight"),  # type: ignore[index]
    "one value": (lambda m: m[2].bias.data[3].add_(1e-6), "2.bias"),  # type: ignore[index]
    "another tensor": (replace, "2.weight"),
    "a half": (lambda m: m[3].weight.data.zero_(), "3.weight"),  # type: ignore[index]
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found(what: str) -> None:
    model, flat, _ = served()
    flat.check_unchanged()
    change, name = CHANGES[what]
    change(model)
    with pytest.raises(UsageError, match=f"parameter {name} was changed other than by"):
        flat.check_unchanged()


def test_what_a_forward_pass_does_to_buffers_is_no_change() -> None:
    model, flat, end = served()
    model[:3](torch.randn(5, 3))  # type: ignore[index]
    flat.check_unchanged()
    flat.load(np.ones(end, np.float32))
    flat.check_unchanged()
