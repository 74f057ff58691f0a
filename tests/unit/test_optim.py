"""Ftrl against the formula written out in float64, number by number."""

import copy
import math

import pytest
import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.optim import Ftrl

HYPER = [
    {"lr": 0.1},
    {"lr": 0.05, "l1": 0.02, "l2": 0.03, "beta": 0.5},
    {"lr": 0.1, "lr_power": -0.7, "l1": 0.001, "initial_accumulator_value": 0.3},
]


def by_hand(weight: float, grads: list[float], hyper: dict[str, float]) -> float:
    """One coordinate through all its gradients."""
    lr, power = hyper["lr"], -hyper.get("lr_power", -0.5)
    l1, l2 = hyper.get("l1", 0.0), hyper.get("l2", 0.0)
    squares, linear = hyper.get("initial_accumulator_value", 0.1), 0.0
    for grad in grads:
        new = squares + grad * grad
        linear += grad - (new**power - squares**power) / lr * weight
        squares = new
        curvature = (squares**power + hyper.get("beta", 0.0)) / lr + 2 * l2
        weight = 0.0 if abs(linear) <= l1 else (math.copysign(l1, linear) - linear) / curvature
    return weight


@pytest.mark.parametrize("hyper", HYPER)
def test_dense_follows_the_formula(hyper: dict[str, float]) -> None:
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(5, 3))
    start = param.detach().clone()
    optimizer = Ftrl([param], **hyper)
    grads = torch.randn(40, 5, 3)
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    for i in range(5):
        for j in range(3):
            expected = by_hand(float(start[i, j]), grads[:, i, j].tolist(), hyper)
            assert float(param.detach()[i, j]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("hyper", HYPER)
def test_sparse_updates_the_touched_rows_only(hyper: dict[str, float]) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(6, 2, sparse=True)
    start = table.weight.detach().clone()
    optimizer = Ftrl(table.parameters(), **hyper)
    batches = [[1, 1, 4], [4], [2, 1, 2]]
    grads: dict[int, list[float]] = {row: [] for row in range(6)}
    for step, ids in enumerate(batches, start=1):
        optimizer.zero_grad()
        (table(torch.tensor(ids)).sum() * step).backward()
        optimizer.step()
        for row in set(ids):
            grads[row].append(float(step * ids.count(row)))
    for row in range(6):
        for column in range(2):
            expected = float(start[row, column])
            if grads[row]:
                expected = by_hand(expected, grads[row], hyper)
            assert float(table.weight.detach()[row, column]) == pytest.approx(expected, abs=1e-5)


def test_l1_makes_exact_zeros() -> None:
    param = nn.Parameter(torch.ones(4))
    optimizer = Ftrl([param], lr=0.1, l1=5.0)
    param.grad = torch.tensor([0.1, -0.1, 100.0, 0.0])
    optimizer.step()
    assert (param == 0).tolist() == [True, True, False, True]


def test_no_gradient_from_a_zero_accumulator_stays_finite() -> None:
    param = nn.Parameter(torch.ones(1))
    optimizer = Ftrl([param], initial_accumulator_value=0.0)
    param.grad = torch.zeros(1)
    optimizer.step()
    assert float(param.detach()) == 0.0


def test_state_dict_goes_on_where_it_was() -> None:
    torch.manual_seed(0)
    grads = torch.randn(20, 3)
    whole = nn.Parameter(torch.ones(3))
    optimizer = Ftrl([whole], lr=0.1)
    for k, grad in enumerate(grads):
        if k == 10:
            other = nn.Parameter(whole.detach().clone())
            resumed = Ftrl([other], lr=0.5)
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        whole.grad = grad.clone()
        optimizer.step()
    for grad in grads[10:]:
        other.grad = grad.clone()
        resumed.step()
    assert torch.equal(whole, other)


@pytest.mark.parametrize(
    "wrong",
    [{"lr": 0.0}, {"lr_power": 0.5}, {"l1": -1.0}, {"l2": -1.0}, {"beta": -1.0},
     {"initial_accumulator_value": -0.1}],
)  # fmt: skip
def test_refuses(wrong: dict[str, float]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(UsageError, match=f"{name}={value}"):
        Ftrl([nn.Parameter(torch.ones(1))], **wrong)
