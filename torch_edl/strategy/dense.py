"""The dense parameters of a model as the flat vectors that servers hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.kernels import group_of
from torch_edl.nn.embedding import Table
from torch_edl.ps_client.client import BUFFER_GROUP, DenseGradient, Segment

Floats = npt.NDArray[np.float32]


def dense_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, tuple[torch.Tensor, int]]:
    """Every parameter and persistent buffer under its state_dict name, with its group.

    The empty parameters that stand for tables are not among them.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, Table)}
    group = group_of(optimizer)
    found: dict[str, tuple[torch.Tensor, int]] = {
        name: (parameter, group(parameter))
        for name, parameter in model.named_parameters()
        if id(parameter) not in tables
    }
    persistent = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in persistent:
            found[name] = (buffer, BUFFER_GROUP)
    return found


class FlatParameters:
    """Copies between the flat vectors of the servers and the tensors of a model.

    A float32 parameter on the CPU becomes a view of the flat vector, so that a pull is one copy.
    """

    def __init__(
        self,
        tensors: dict[str, tuple[torch.Tensor, int]],
        layout: Sequence[Sequence[Segment]],
    ) -> None:
        self._flat: list[torch.Tensor] = []
        self._gradient: list[torch.Tensor] = []
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._parts: list[list[tuple[torch.Tensor, torch.Tensor, int]]] = []
        for segments in layout:
            size = sum(s.size for s in segments)
            flat, gradient = torch.zeros(size), torch.zeros(size)
            parts = []
            for segment in segments:
                tensor = tensors[segment.name][0]
                view = flat[segment.start : segment.start + segment.size].view(segment.shape)
                view.copy_(tensor.detach())
                if tensor.dtype == torch.float32 and tensor.device.type == "cpu":
                    tensor.data = view
                else:
                    self._copied.append((tensor, view))
                place = gradient[segment.start : segment.start + segment.size]
                parts.append((tensor, place, segment.group))
            self._flat.append(flat)
            self._gradient.append(gradient)
            self._parts.append(parts)
        # Places of parameters that some minibatch of the window has a gradient for.
        self._reached: list[set[int]] = [set() for _ in layout]

    def load(self, server: int, values: Floats) -> None:
        """Takes what a server holds."""
        np.copyto(self._flat[server].numpy(), values)

    def spread(self) -> None:
        """After all :meth:`load`: brings the values to tensors that are no views."""
        with torch.no_grad():
            for tensor, view in self._copied:
                tensor.copy_(view)

    def collect(self) -> None:
        """Adds the gradients of one minibatch to those of the window."""
        with torch.no_grad():
            for server, parts in enumerate(self._parts):
                reached = self._reached[server]
                for index, (tensor, place, group) in enumerate(parts):
                    if group == BUFFER_GROUP or tensor.grad is None:
                        continue
                    if index in reached:
                        place.add_(tensor.grad.reshape(-1))
                    else:
                        place.copy_(tensor.grad.reshape(-1))
                        reached.add(index)

    def take_gradients(self) -> list[DenseGradient]:
        """What was collected since the last call. Its arrays are valid until the next collect."""
        made = []
        with torch.no_grad():
            for flat, parts, reached in zip(
                self._gradient, self._parts, self._reached, strict=True
            ):
                for index, (tensor, place, group) in enumerate(parts):
                    if group == BUFFER_GROUP:
                        place.copy_(tensor.reshape(-1))
                        reached.add(index)
                untouched = [i for i in range(len(parts)) if i not in reached]
                made.append(DenseGradient(flat.numpy(), untouched))
                reached.clear()
        return made

    def clear_gradients(self) -> None:
        """Forgets the gradients of all parameters."""
        for parts in self._parts:
            for tensor, _, _ in parts:
                tensor.grad = None

    def forget(self) -> None:
        """Drops what was collected."""
        for reached in self._reached:
            reached.clear()
        self.clear_gradients()
