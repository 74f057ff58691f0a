"""Which compiled kernel runs a torch optimizer.

The user's optimizer object is read, never pickled: its class and its parameter groups say all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_edl.errors import UnsupportedOptimizerError
from torch_edl.optim import Ftrl
from torch_edl.wire import pserver_pb2 as pb

# Class -> kernel and the hyperparameters that it takes, under torch's names. What a group holds
# beyond them (foreach, fused, capturable, ...) says how torch computes, not what.
_KERNELS: dict[type[torch.optim.Optimizer], tuple[str, tuple[str, ...]]] = {
    torch.optim.SGD: (
        "sgd",
        ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"),
    ),
    torch.optim.Adagrad: (
        "adagrad",
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    ),
    torch.optim.Adam: (
        "adam",
        ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad", "maximize"),
    ),
    torch.optim.AdamW: (
        "adamw",
        ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad", "maximize"),
    ),
    torch.optim.SparseAdam: ("sparse_adam", ("lr", "beta1", "beta2", "eps", "maximize")),
    torch.optim.RMSprop: (
        "rmsprop",
        ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"),
    ),
    Ftrl: ("ftrl", ("lr", "lr_power", "l1", "l2", "beta", "initial_accumulator_value")),
}

SUPPORTED = tuple(f"{kind.__module__.split('.')[0]}.optim.{kind.__name__}" for kind in _KERNELS)


def read_optimizer(optimizer: torch.optim.Optimizer) -> pb.OptimizerConfig:
    """The kernel and hyperparameters of each parameter group, in the order of the groups.

    Raises:
        UnsupportedOptimizerError: the class has no kernel, or decays in a way that has none.
    """
    found = _KERNELS.get(type(optimizer))
    if found is None:
        raise UnsupportedOptimizerError(
            f"optimizer {type(optimizer).__name__}: parameter servers and the tables of "
            f"torch_edl.nn have no kernel for it; use one of {', '.join(SUPPORTED)}"
        )
    kind, names = found
    config = pb.OptimizerConfig(kind=kind)
    for group in optimizer.param_groups:
        if group.get("decoupled_weight_decay") and kind == "adam":
            raise UnsupportedOptimizerError(
                "Adam(decoupled_weight_decay=True): the servers call that AdamW; use AdamW"
            )
        hyper = config.groups.add().hyper
        for name in names:
            hyper[name] = float(_value(group, name))
    return config


def _value(group: dict[str, Any], name: str) -> float:
    if name in ("beta1", "beta2"):
        return float(group["betas"][int(name[-1]) - 1])
    return float(group.get(name, 0.0))


def group_of(optimizer: torch.optim.Optimizer) -> Callable[[torch.nn.Parameter], int]:
    """A function from a parameter to the index of its group; -1 for one that has none (frozen)."""
    index = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    return lambda parameter: index.get(id(parameter), -1) if parameter.requires_grad else -1
