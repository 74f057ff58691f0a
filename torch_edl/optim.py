"""The optimizer FTRL, which torch.optim lacks, and the compiled kernels of torch optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_edl.errors import UnsupportedOptimizerError, UsageError
from torch_edl.wire import pserver_pb2 as pb

_LEAST_RATE = torch.finfo(torch.float32).tiny
"""Smallest learning rate of a step; a division by a smaller rate overflows float32."""


class Ftrl(Optimizer):
    r"""Follow the regularised leader, per coordinate (McMahan et al. 2013), as in TensorFlow.

    With ``n`` the sum of squared gradients (initially ``initial_accumulator_value``), ``z`` the
    linear term (initially 0) and ``p = -lr_power``, a step is::

        n' = n + g**2
        z' = z + g - (n'**p - n**p) / lr * w
        w' = 0 if |z'| <= l1 else (sign(z') * l1 - z') / ((n'**p + beta) / lr + 2 * l2)

    so ``l1`` makes weights exactly 0. A step at a learning rate of 0 (the start of a warm-up) has
    no effect. Gradients are dense or sparse (COO over the first dimension). Rows that a sparse
    gradient lacks keep their weight and state.

    State of a parameter: ``step`` (float32 scalar), ``accumulator`` and ``linear`` (both of the
    shape of the parameter).

    Raises:
        UsageError: an argument is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.001,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
        initial_accumulator_value: float = 0.1,
    ) -> None:
        for name, value, low in (("l1", l1, 0.0), ("l2", l2, 0.0), ("beta", beta, 0.0)):
            if value < low:
                raise UsageError(f"{name}={value}: must be 0 or more")
        if lr <= 0:
            raise UsageError(f"lr={lr}: must be above 0, since Ftrl divides by it")
        if lr_power > 0:
            raise UsageError(f"lr_power={lr_power}: must be 0 or less; -0.5 is the usual one")
        if initial_accumulator_value < 0:
            raise UsageError(
                f"initial_accumulator_value={initial_accumulator_value}: must be 0 or more"
            )
        defaults = {
            "lr": lr,
            "lr_power": lr_power,
            "l1": l1,
            "l2": l2,
            "beta": beta,
            "initial_accumulator_value": initial_accumulator_value,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, and return the value of ``closure``.

        Raises:
            UsageError: a gradient is sparse over more than the first dimension.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                # A rate of 0, at the start of a warm-up, has no effect, as on the servers.
                if param.grad is not None and group["lr"] >= _LEAST_RATE:
                    self._update(param, param.grad, group)
        return loss

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["accumulator"] = torch.full_like(param, group["initial_accumulator_value"])
            state["linear"] = torch.zeros_like(param)
        state["step"] += 1
        accumulator, linear = state["accumulator"], state["linear"]
        if not grad.is_sparse:
            param.copy_(_leader(param, grad, accumulator, linear, group))
            return
        grad = grad.coalesce()
        rows = grad.indices()
        if rows.shape[0] != 1:
            raise UsageError(
                f"a sparse gradient over {rows.shape[0]} dimensions: Ftrl takes those over the "
                "first dimension only, as nn.Embedding(sparse=True) makes them"
            )
        rows = rows[0]
        # The rows are unique after coalesce, so they can be copied, updated and written back.
        row_accumulator, row_linear = accumulator[rows], linear[rows]
        param[rows] = _leader(param[rows], grad.values(), row_accumulator, row_linear, group)
        accumulator[rows] = row_accumulator
        linear[rows] = row_linear


def _leader(
    weight: Tensor, grad: Tensor, accumulator: Tensor, linear: Tensor, group: dict[str, Any]
) -> Tensor:
    """Update ``accumulator`` and ``linear`` in place and return the new weight. All tensors have
    the same shape."""
    lr, power = group["lr"], -group["lr_power"]
    before = accumulator.pow(power)
    accumulator.addcmul_(grad, grad)
    after = accumulator.pow(power)
    linear.add_(grad).addcmul_(after - before, weight, value=-1 / lr)
    curvature = after.add_(group["beta"]).div_(lr).add_(2 * group["l2"])
    shrunk = linear - linear.clamp(-group["l1"], group["l1"])
    # Where nothing was accumulated the quotient is 0 / 0. Such a weight never had a gradient: 0.
    return torch.where(shrunk == 0, torch.zeros_like(shrunk), -shrunk / curvature)


_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad", "maximize")
# Class -> kernel and the names of its hyperparameters in torch. The other options of a group
# (foreach, fused, capturable, ...) do not affect the result.
_KERNELS: dict[type[torch.optim.Optimizer], tuple[str, tuple[str, ...]]] = {
    torch.optim.SGD: (
        "sgd",
        ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"),
    ),
    torch.optim.Adagrad: (
        "adagrad",
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    ),
    torch.optim.Adam: ("adam", _ADAM),
    torch.optim.AdamW: ("adamw", _ADAM),
    torch.optim.SparseAdam: ("sparse_adam", ("lr", "beta1", "beta2", "eps", "maximize")),
    torch.optim.RMSprop: (
        "rmsprop",
        ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"),
    ),
    Ftrl: ("ftrl", ("lr", "lr_power", "l1", "l2", "beta", "initial_accumulator_value")),
}

SUPPORTED = tuple(f"{kind.__module__.split('.')[0]}.optim.{kind.__name__}" for kind in _KERNELS)


def optimizer_config(optimizer: torch.optim.Optimizer) -> pb.OptimizerConfig:
    """Return the compiled kernel of a torch optimizer, and the hyperparameters of each parameter
    group. The optimizer is not pickled.

    Raises:
        UnsupportedOptimizerError: the class has no kernel, or the optimizer is
            ``Adam(decoupled_weight_decay=True)``.
    """
    kind, _ = _kernel(optimizer)
    config = pb.OptimizerConfig(kind=kind)
    for group, values in zip(optimizer.param_groups, hyperparameters(optimizer), strict=True):
        if group.get("decoupled_weight_decay") and kind == "adam":
            raise UnsupportedOptimizerError(
                "Adam(decoupled_weight_decay=True): the servers call that AdamW; use AdamW"
            )
        hyper = config.groups.add().hyper
        for name, value in values.items():
            hyper[name] = value
    return config


def hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
    """Return the current hyperparameters of an optimizer's kernel, for each parameter group.

    Raises:
        UnsupportedOptimizerError: the class has no kernel.
    """
    _, names = _kernel(optimizer)
    return [{name: _value(group, name) for name in names} for group in optimizer.param_groups]


def _kernel(optimizer: torch.optim.Optimizer) -> tuple[str, tuple[str, ...]]:
    found = _KERNELS.get(type(optimizer))
    if found is None:
        raise UnsupportedOptimizerError(
            f"optimizer {type(optimizer).__name__}: parameter servers and the tables of "
            f"torch_edl.nn have no kernel for it; use one of {', '.join(SUPPORTED)}"
        )
    return found


def _value(group: dict[str, Any], name: str) -> float:
    if name in ("beta1", "beta2"):
        return float(group["betas"][int(name[-1]) - 1])
    return float(group.get(name, 0.0))


def group_of(optimizer: torch.optim.Optimizer) -> Callable[[torch.nn.Parameter], int]:
    """Return a function from a parameter to the index of its group; -1 if the parameter is frozen
    or in no group."""
    index = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    return lambda parameter: index.get(id(parameter), -1) if parameter.requires_grad else -1
