"""The optimizer that a worker sent, as compiled kernels: one for each parameter group."""

from __future__ import annotations

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
    """The kernels of all groups."""

    kind: str
    groups: tuple[_core.Optimizer, ...]
    """With the learning rates of pushes that carry none."""

    @classmethod
    def from_proto(cls, config: pb.OptimizerConfig) -> Optimizers:
        """The kernels that a worker described.

        Raises:
            UsageError: the kind or a hyperparameter is unknown; the message names it.
        """
        try:
            kernels = tuple(_core.Optimizer(config.kind, dict(g.hyper)) for g in config.groups)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return cls(config.kind, kernels)

    def kernel(self, group: int, what: str) -> _core.Optimizer | None:
        """The kernel of a group; None for frozen parameters and buffers.

        Raises:
            UsageError: the group does not exist; the message names ``what`` is in it.
        """
        if group in (FROZEN, BUFFER):
            return None
        if not 0 <= group < len(self.groups):
            raise UsageError(
                f"{what}: parameter group {group}, but the optimizer has {len(self.groups)}"
            )
        return self.groups[group]

    def rates(self, pushed: list[float], divisor: float) -> list[float]:
        """The learning rate of each group for one push.

        Args:
            pushed: the rates that the push carries, one per group; empty: those of the groups.
            divisor: the rates are divided by it (the staleness of the push).

        Raises:
            UsageError: another number of rates than there are groups, or one that is not finite.
        """
        if pushed and len(pushed) != len(self.groups):
            raise UsageError(
                f"{len(pushed)} learning rates: the optimizer has {len(self.groups)} groups"
            )
        rates = pushed or [kernel.hyper["lr"] for kernel in self.groups]
        for group, rate in enumerate(rates):
            if not abs(rate) <= _LARGEST:  # also true for NaN
                raise UsageError(
                    f"learning rate {rate} of parameter group {group}: not finite in float32; "
                    "look at the scheduler"
                )
        return [r / divisor for r in rates]

    def __str__(self) -> str:
        groups = [
            ", ".join(f"{name} {value:g}" for name, value in sorted(each.hyper.items()))
            for each in self.groups
        ]
        return f"{self.kind} ({'; '.join(groups)})"

    def same(self, other: Optimizers) -> bool:
        """Whether both update alike, apart from the learning rate, which a scheduler may change."""

        own, others = (
            [{**kernel.hyper, "lr": 0.0} for kernel in each.groups] for each in (self, other)
        )
        return self.kind == other.kind and own == others
