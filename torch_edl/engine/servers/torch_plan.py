"""What an update of a torch model looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torch_edl.engine.servers.plan import Call, Floats, Plan
from torch_edl.nn.embedding import Table
from torch_edl.nn.rows import DeviceBlock

Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class TorchCall(Call):
    """See :class:`Call`."""

    module: Table
    ids: torch.Tensor
    """Kept so that no other tensor takes its place in memory."""
    place: Place | None
    """At the lookup; the model may change its ids afterwards. None: whoever runs the model may
    change them unseen, so that the values alone tell."""


@dataclass
class TorchPlan(Plan[TorchCall, DeviceBlock]):
    """See :class:`Plan`."""

    given: dict[int, list[tuple[torch.Tensor, int]]] = field(default_factory=dict)
    """Of minibatches whose lookups were found without the model: the features and their versions.
    """

    def take(self, rows: Sequence[Floats]) -> None:
        super().take(rows)
        modules = {call.table: call.module for calls in self.calls for call in calls}
        for table, block in self._blocks:
            device = modules[table.name].weight.device
            if device.type != "cpu":
                block.on(device)  # on its way while the model begins

    def start_down(self) -> None:
        """Begins to copy gradients from other devices than the CPU."""
        for _, block in self._blocks:
            block.start_down()
