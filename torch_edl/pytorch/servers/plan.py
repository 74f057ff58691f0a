"""Plan of an update of a torch model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torch_edl.engine.servers.plan import Floats, RowLookup, RowPlan
from torch_edl.nn.embedding import Table
from torch_edl.nn.rows import DeviceBlock

Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class TorchCall(RowLookup):
    """One lookup of a torch model; see :class:`RowLookup`."""

    module: Table
    ids: torch.Tensor
    """The ids. The reference prevents another tensor from getting the same memory."""
    place: Place | None
    """Memory position at the lookup, as the model may change its ids later. None for a script,
    which may change ids unnoticed, so that only the values can be compared."""


@dataclass
class TorchPlan(RowPlan[TorchCall, DeviceBlock]):
    """Plan of an update of a torch model; see :class:`RowPlan`."""

    given: dict[int, list[tuple[torch.Tensor, int]]] = field(default_factory=dict)
    """For each minibatch that was planned without a run of the model: the tensors of its features,
    each with its change count at that time. A higher count later means that the model or the script
    has changed the tensor in place."""

    def take(self, rows: Sequence[Floats]) -> None:
        super().take(rows)
        modules = {call.table: call.module for calls in self.calls for call in calls}
        for table, block in self._blocks:
            device = modules[table.name].weight.device
            if device.type != "cpu":
                block.on(device)  # starts the copy, which overlaps with the first layers

    def start_down(self) -> None:
        """Start to copy gradients from other devices to the CPU."""
        for _, block in self._blocks:
            block.start_down()
