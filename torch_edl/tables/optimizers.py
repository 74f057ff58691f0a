"""The optimizer that a worker sent, as one compiled kernel for each parameter group."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.wire import pserver_pb2 as pb

FROZEN = -1
"""The group of parameters that are never updated."""
BUFFER = -2
"""The group of buffers, which are assigned rather than trained."""

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Optimizers:
    """The optimizer kernels of all parameter groups."""

    kind: str
    groups: tuple[_core.Optimizer, ...]
    """Kernel of each group, with the learning rate to use if a push carries none."""

    @classmethod
    def from_proto(cls, config: pb.OptimizerConfig) -> Optimizers:
        """Create the kernels from the description that a worker sent.

        Raises:
            UsageError: the kind or a hyperparameter is unknown; the message names it.
        """
        try:
            kernels = tuple(_core.Optimizer(config.kind, dict(g.hyper)) for g in config.groups)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return cls(config.kind, kernels)

    def kernel(self, group: int, what: str) -> _core.Optimizer | None:
        """Return the kernel of a group; None for frozen parameters and buffers.

        Raises:
            UsageError: the group does not exist. The message starts with ``what``.
        """
        if group in (FROZEN, BUFFER):
            return None
        if not 0 <= group < len(self.groups):
            raise UsageError(
                f"{what}: parameter group {group}, but the optimizer has {len(self.groups)}"
            )
        return self.groups[group]

    @functools.cached_property
    def own_rates(self) -> list[float]:
        """Learning rate of each group for a push that carries none."""
        return [kernel.hyper["lr"] for kernel in self.groups]

    def rates(self, pushed: list[float]) -> list[float]:
        """Return the learning rate of each group for one push.

        Args:
            pushed: rates from the push, one for each group; empty to use the rates of the groups.

        Raises:
            UsageError: the number of rates is wrong, or a rate is not finite.
        """
        if pushed and len(pushed) != len(self.groups):
            raise UsageError(
                f"{len(pushed)} learning rates: the optimizer has {len(self.groups)} groups"
            )
        rates = pushed or self.own_rates
        for group, rate in enumerate(rates):
            if not abs(rate) <= _LARGEST:  # also true for NaN
                raise UsageError(
                    f"learning rate {rate} of parameter group {group}: not finite in float32; "
                    "look at the scheduler"
                )
        return rates

    def __str__(self) -> str:
        groups = [
            ", ".join(f"{name} {value:g}" for name, value in sorted(each.hyper.items()))
            for each in self.groups
        ]
        return f"{self.kind} ({'; '.join(groups)})"

    def same(self, other: Optimizers) -> bool:
        """Return True if kind and hyperparameters, except for the learning rate, are equal."""

        own, others = (
            [{**kernel.hyper, "lr": 0.0} for kernel in each.groups] for each in (self, other)
        )
        return self.kind == other.kind and own == others
