"""Every compiled optimizer against torch's own, on dense parameters and on rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from torch_edl import _core
from torch_edl.optim import Ftrl

STEPS = 12
Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]

# (kernel, its hyperparameters, the torch class, arguments that are named otherwise there)
CASES: list[tuple[str, dict[str, float], Any]] = [
    ("sgd", {"lr": 0.1}, torch.optim.SGD),
    ("sgd", {"lr": 0.1, "momentum": 0.9}, torch.optim.SGD),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}, torch.optim.SGD),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": 1}, torch.optim.SGD),
    ("sgd", {"lr": 0.1, "weight_decay": 0.1, "maximize": 1}, torch.optim.SGD),
    ("adagrad", {"lr": 0.1}, torch.optim.Adagrad),
    (
        "adagrad",
        {
            "lr": 0.1,
            "lr_decay": 0.1,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.5,
            "eps": 1e-6,
        },
        torch.optim.Adagrad,
    ),
    ("adagrad", {"lr": 0.1, "maximize": 1}, torch.optim.Adagrad),
    ("adam", {"lr": 0.1}, torch.optim.Adam),
    (
        "adam",
        {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1},
        torch.optim.Adam,
    ),
    ("adam", {"lr": 0.1, "beta1": 0.0, "beta2": 0.0}, torch.optim.Adam),
    ("adam", {"lr": 0.1, "beta1": 0.3, "beta2": 0.2, "eps": 1e-12}, torch.optim.Adam),
    ("adam", {"lr": 0.1, "amsgrad": 1}, torch.optim.Adam),
    ("adam", {"lr": 0.1, "amsgrad": 1, "beta1": 0.0, "beta2": 0.0}, torch.optim.Adam),
    ("adam", {"lr": 0.1, "maximize": 1}, torch.optim.Adam),
    ("adamw", {"lr": 0.1}, torch.optim.AdamW),
    ("adamw", {"lr": 0.1, "weight_decay": 0.3, "amsgrad": 1, "maximize": 1}, torch.optim.AdamW),
    ("rmsprop", {"lr": 0.01}, torch.optim.RMSprop),
    ("rmsprop", {"lr": 0.01, "alpha": 0.9, "weight_decay": 0.1}, torch.optim.RMSprop),
    ("rmsprop", {"lr": 0.01, "momentum": 0.9, "maximize": 1}, torch.optim.RMSprop),
    ("rmsprop", {"lr": 0.01, "centered": 1}, torch.optim.RMSprop),
    ("rmsprop", {"lr": 0.01, "centered": 1, "alpha": 0.4, "eps": 1e-2}, torch.optim.RMSprop),
    ("rmsprop", {"lr": 0.01, "centered": 1, "momentum": 0.5}, torch.optim.RMSprop),
    ("ftrl", {"lr": 0.1}, Ftrl),
    ("ftrl", {"lr": 0.1, "l1": 0.3, "l2": 0.1, "beta": 0.5}, Ftrl),
    ("ftrl", {"lr": 0.1, "lr_power": -0.7, "initial_accumulator_value": 0.3}, Ftrl),
]
ids_of = [f"{k}-{'-'.join(f'{n}={v:g}' for n, v in h.items())}" for k, h, _ in CASES]
every_case = pytest.mark.parametrize(("kind", "hyper", "torch_class"), CASES, ids=ids_of)


def as_torch(kind: str, hyper: dict[str, float], torch_class: Any, params: Any) -> Any:
    args: dict[str, Any] = {}
    for name, value in hyper.items():
        args[name] = (
            bool(value) if name in ("nesterov", "amsgrad", "centered", "maximize") else value
        )
    if "beta1" in args:
        args["betas"] = (args.pop("beta1"), args.pop("beta2"))
    return torch_class(params, **args)


def tolerance(kind: str) -> dict[str, float]:
    """Ftrl multiplies the difference of near numbers by w / lr: torch's float32 is what is far off
    there, and is compared in float64."""
    return {"rtol": 1e-5, "atol": 1e-5} if kind == "ftrl" else {"rtol": 2e-6, "atol": 2e-6}


def parameter(kind: str, values: np.ndarray) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype(kind)))


def dtype(kind: str) -> torch.dtype:
    return torch.float64 if kind == "ftrl" else torch.float32


def gradients(shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Return gradients of very different sizes, with zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((STEPS, *shape)) * rng.choice([1e-3, 1, 10, 0], (STEPS, *shape))
    return list(values.astype(np.float32))


@every_case
@pytest.mark.parametrize("n", [1, 17, 1000])
def test_a_dense_parameter_moves_as_in_torch(
    kind: str, hyper: dict[str, float], torch_class: Any, n: int
) -> None:
    optimizer = _core.Optimizer(kind, hyper)
    ours = np.random.default_rng(1).standard_normal(n, dtype=np.float32)
    theirs = parameter(kind, ours)
    reference = as_torch(kind, hyper, torch_class, [theirs])
    slots = [np.full(n, initial, np.float32) for initial in optimizer.slot_initial]
    for step, gradient in enumerate(gradients((n,)), 1):
        lr = hyper["lr"] / step if step > 6 and kind != "ftrl" else hyper["lr"]  # a scheduler's
        lr = 0.0 if step <= 2 else lr  # a warm-up
        reference.param_groups[0]["lr"] = lr
        theirs.grad = torch.tensor(gradient, dtype=dtype(kind))
        reference.step()
        _core.dense_apply(optimizer, ours, gradient, slots, lr, step)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), **tolerance(kind))
    for name, slot in zip(optimizer.slots, slots, strict=True):
        state = reference.state[theirs][name].detach().numpy()
        np.testing.assert_allclose(slot, state, **tolerance(kind))


def table_of(kind: str, hyper: dict[str, float], dim: int, seed: int) -> _core.Table:
    args = {"mean": 0.0, "std": 1.0}
    return _core.Table("t", dim, "normal", args, seed, _core.Optimizer(kind, hyper))


@every_case
@pytest.mark.parametrize("dim", [1, 8, 13, 16, 64])
def test_rows_that_are_all_touched_move_as_a_dense_parameter(
    kind: str, hyper: dict[str, float], torch_class: Any, dim: int
) -> None:
    table = table_of(kind, hyper, dim, seed=3)
    ids = np.arange(40) * 977 - 5000
    theirs = parameter(kind, table.pull(ids))
    reference = as_torch(kind, hyper, torch_class, [theirs])
    rng = np.random.default_rng(0)
    for step, gradient in enumerate(gradients((40, dim)), 1):
        theirs.grad = torch.tensor(gradient, dtype=dtype(kind))
        reference.step()
        order = rng.permutation(40)
        table.push(ids[order], gradient[order], hyper["lr"], step)
        got = table.pull(ids)
        np.testing.assert_allclose(got, theirs.detach().numpy(), **tolerance(kind))


SPARSE: list[tuple[str, dict[str, float], Any]] = [
    ("sgd", {"lr": 0.1}, torch.optim.SGD),
    ("adagrad", {"lr": 0.1}, torch.optim.Adagrad),
    (
        "adagrad",
        {"lr": 0.1, "lr_decay": 0.2, "initial_accumulator_value": 0.1},
        torch.optim.Adagrad,
    ),
    ("sparse_adam", {"lr": 0.1}, torch.optim.SparseAdam),
    ("sparse_adam", {"lr": 0.1, "beta1": 0.7, "beta2": 0.9, "eps": 1e-4}, torch.optim.SparseAdam),
    ("sparse_adam", {"lr": 0.1, "maximize": 1}, torch.optim.SparseAdam),
    ("ftrl", {"lr": 0.1, "l1": 0.01}, Ftrl),
]


@pytest.mark.parametrize(("kind", "hyper", "torch_class"), SPARSE)
def test_rows_move_as_with_torchs_sparse_gradients(
    kind: str, hyper: dict[str, float], torch_class: Any
) -> None:
    """Rows of a batch only, with repeated ids, as nn.Embedding(sparse=True) makes them."""
    dim, total = 16, 60
    table = table_of(kind, hyper, dim, seed=5)
    everything = np.arange(total)
    embedding = torch.nn.Embedding(total, dim, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(table.pull(everything).copy()))
    reference = as_torch(kind, hyper, torch_class, embedding.parameters())
    rng = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        ids = rng.integers(0, total, 25)
        gradient = rng.standard_normal((25, dim), dtype=np.float32)
        reference.zero_grad()
        embedding(torch.from_numpy(ids)).backward(torch.from_numpy(gradient))
        reference.step()
        unique, _, inverse = _core.unique_partition(ids, 1)
        sums = np.empty((len(unique), dim), np.float32)
        _core.scatter_sum(gradient, inverse, sums)
        table.push(unique, sums, hyper["lr"], step)
        expected = embedding.weight.detach().numpy()
        np.testing.assert_allclose(table.pull(everything), expected, rtol=2e-6, atol=1e-6)


def test_a_row_of_momentum_sgd_does_not_dampen_its_first_gradient() -> None:
    """Each row is a parameter of its own: what torch does on a parameter's first step."""
    hyper = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    table = table_of("sgd", hyper, 4, seed=0)
    ids = np.arange(3)
    weights = [torch.nn.Parameter(torch.from_numpy(r.copy())) for r in table.pull(ids)]
    reference = as_torch("sgd", hyper, torch.optim.SGD, weights)
    for step, touched in enumerate(([0, 1], [1, 2], [0, 1, 2], [2]), 1):
        gradient = np.full((len(touched), 4), step, np.float32)
        reference.zero_grad(set_to_none=True)
        for i, row in zip(touched, gradient, strict=True):
            weights[i].grad = torch.from_numpy(row)
        reference.step()
        table.push(np.array(touched), gradient, 0.1, step)
    expected = np.stack([w.detach().numpy() for w in weights])
    np.testing.assert_allclose(table.pull(ids), expected, atol=1e-6)


def test_slots_start_as_the_optimizers_and_not_as_weights() -> None:
    table = table_of("adagrad", {"lr": 0.1, "initial_accumulator_value": 0.25}, 4, seed=0)
    table.pull(np.arange(100))
    table.begin_snapshot()
    chunk = table.next_chunk(1000)
    assert chunk is not None
    table.end_snapshot()
    assert (chunk[2] == 0.25).all()


DEFAULTS_OF = {kind: torch_class for kind, _, torch_class in [*CASES, *SPARSE]}


@pytest.mark.parametrize("kind", sorted(DEFAULTS_OF))
def test_what_is_left_out_has_torchs_default(kind: str) -> None:
    defaults = DEFAULTS_OF[kind]([torch.zeros(1)]).defaults
    for name, value in _core.Optimizer(kind, {}).hyper.items():
        if name in ("beta1", "beta2"):
            assert value == defaults["betas"][int(name[-1]) - 1]
        else:
            assert value == float(defaults.get(name, 0)), name


def test_unknown_kinds_and_hyperparameters_are_named() -> None:
    with pytest.raises(ValueError, match="lion: unknown; choose sgd, adagrad"):
        _core.Optimizer("lion", {})
    with pytest.raises(ValueError, match=r"no hyperparameter 'momentum'; it knows .*beta1"):
        _core.Optimizer("adam", {"momentum": 0.9})
    with pytest.raises(ValueError, match="'lr' is not finite"):
        _core.Optimizer("sgd", {"lr": float("nan")})


def test_denormal_state_is_flushed() -> None:
    optimizer = _core.Optimizer("sgd", {"lr": 0.0, "momentum": 0.5})
    param, zero = np.ones(8, np.float32), np.zeros(8, np.float32)
    slot = np.full(8, 2e-38, np.float32)
    _core.dense_apply(optimizer, param, zero, [slot], 0.0, 2)
    assert (slot == 0).all()
    assert np.float32(1e-40) * np.float32(1) != 0  # the caller's own arithmetic keeps its mode
