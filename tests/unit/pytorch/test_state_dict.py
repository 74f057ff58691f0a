"""Optimizers that keep more than a tensor for a name: their state is taken over like any other."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.pytorch.test_replica import commit, through_json
from torch_edl.errors import UsageError
from torch_edl.pytorch import replica as replicas
from torch_edl.pytorch import state_dict
from torch_edl.pytorch.replica import Replica, State


class Keeper(torch.optim.Optimizer):
    """Keeps factors in lists, tuples and dicts, as SOAP and Shampoo do."""

    def __init__(self, params: Any, odd: Any = None) -> None:
        super().__init__(params, {"lr": 0.01})
        self.odd = odd

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["all"] = {"steps": self.state.get("all", {"steps": 0})["steps"] + 1}  # type: ignore[index, call-overload]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state |= {
                    "GG": [torch.zeros(p.numel(), p.numel()), None, torch.zeros(0)],
                    "pair": (torch.zeros_like(p), (3, "text", False)),
                    "by": {"side": {0: torch.zeros_like(p), "0": [float("inf"), 0.1]}, "a.b": 1},
                    "by.side": torch.ones(2, dtype=torch.float64),
                    "by.side.0": torch.ones(3, dtype=torch.int64),
                    "kind": "two-sided",
                    "empty": [],
                }
            if self.odd is not None:
                state["GG"][1] = [self.odd]
            g = p.grad.reshape(-1).float()
            state["GG"][0].lerp_(torch.outer(g, g), 0.1)
            state["pair"][0].lerp_(p.grad, 0.3)
            state["by"]["side"][0].add_(p.grad)
            state["by.side"].mul_(1.1)
            scale = state["GG"][0].diagonal().reshape(p.shape).sqrt() + state["by.side"][0]
            p.sub_((0.01 * state["pair"][0] / scale).to(p.dtype))


class Script:
    def __init__(self, optimizer: str, seed: int, odd: Any = None) -> None:
        torch.manual_seed(seed)
        self.kind = torch.bfloat16 if optimizer == "bf16" else torch.float32
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(self.kind)
        parameters = self.model.parameters()
        self.optimizer: Any = (
            torch.optim.LBFGS(parameters, lr=0.3, max_iter=3, history_size=4)
            if optimizer == "lbfgs"
            else Keeper(parameters, odd)
        )
        self.replica = Replica(self.model, [self.optimizer])

    def step(self, number: int) -> None:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss: torch.Tensor = self.model(x.to(self.kind)).sub(1).pow(2).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        closure()
        self.optimizer.step(closure)


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            same(*pair)
    else:
        assert one == other


def sent(state: State, folder: Path) -> State:
    return through_json(state)


def written(state: State, folder: Path) -> State:
    commit(state, folder)
    return replicas.read(folder)


@pytest.mark.parametrize("optimizer", ["lbfgs", "keeper", "bf16"])
@pytest.mark.parametrize("way", [sent, written])
def test_who_takes_a_nested_state_over_goes_on_bit_by_bit(
    optimizer: str, way: Any, tmp_path: Path
) -> None:
    source, joiner = Script(optimizer, 1), Script(optimizer, 2)
    for number in range(5):
        source.step(number)
    state = way(source.replica.copy(), tmp_path)
    if optimizer == "keeper":
        assert {"optimizer.0.0.GG.0", "optimizer.0.0.pair.0"} <= state.tensors.keys()
    joiner.replica.load(state)
    for number in range(5, 9):
        same(source.optimizer.state_dict()["state"], joiner.optimizer.state_dict()["state"])
        same(source.model.state_dict(), joiner.model.state_dict())
        source.step(number)
        joiner.step(number)
    assert source.replica.digest() == joiner.replica.digest()


def test_a_state_of_another_type_of_numbers_is_loaded_as_torch_does() -> None:
    source = Script("lbfgs", 1)
    source.step(0)
    state = source.replica.state()
    half = Script("lbfgs", 2)
    half.model.to(torch.bfloat16)
    half.kind = torch.bfloat16
    half.replica.load(state)
    assert half.optimizer.state_dict()["state"][0]["d"].dtype is torch.bfloat16
    half.step(1)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch.float32, "Keeper: its state has a dtype at 0.GG.1.0"),
        ({(1, 2): 3}, "Keeper: its state has a tuple at a key of 0.GG.1.0"),
        (torch.zeros(2).to_sparse(), r"a Tensor \(torch.sparse_coo, shape \(2,\)\) at 0.GG.1.0"),
    ],
)
def test_what_cannot_be_said_is_named(odd: Any, message: str) -> None:
    script = Script("keeper", 1, odd)
    script.step(0)
    with pytest.raises(UsageError, match=message):
        script.replica.state()


def test_an_option_that_cannot_be_said_is_named() -> None:
    script = Script("keeper", 1)
    script.optimizer.param_groups[0]["kind"] = {"of": torch.float32}
    with pytest.raises(UsageError, match="Keeper: its state has a dtype at 0\\.kind\\.of"):
        script.replica.state()


def test_what_goes_through_json_comes_back() -> None:
    value = {"a": [1, 2.5, None, {"b": float("inf")}], "c": Counter({3: 1, 7: 2}), "d": {1: "x"}}
    back = state_dict.from_json(json.loads(json.dumps(state_dict.jsonable(value))))
    assert back == value
    assert isinstance(back["c"], Counter)
