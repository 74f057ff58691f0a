"""The running statistics of normalization layers, which a forward changes without a gradient."""

from __future__ import annotations

import torch
from torch import nn

_LAYERS = (nn.modules.batchnorm._NormBase,)


class RunningStatistics:
    """Running means and variances of a model's BatchNorm and InstanceNorm layers.

    The members of a ring all take those of one member, as DistributedDataParallel does.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, _LAYERS)]
        self._buffers = [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
        self._shared = [
            buffer
            for layer in layers
            for buffer in (layer.running_mean, layer.running_var)
            if buffer is not None
        ]
        self._saved = [buffer.clone() for buffer in self._buffers]
        self.numel = sum(buffer.numel() for buffer in self._shared)

    @torch.no_grad()
    def save(self) -> None:
        """Notes the values, before an update."""
        for saved, buffer in zip(self._saved, self._buffers, strict=True):
            saved.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Takes back what the forwards since :meth:`save` did."""
        for saved, buffer in zip(self._saved, self._buffers, strict=True):
            buffer.copy_(saved)

    def write(self, flat: torch.Tensor) -> None:
        """Copies means and variances into a tensor of ``numel`` numbers."""
        if self._shared:
            flat.copy_(torch.cat([b.detach().reshape(-1).float() for b in self._shared]))

    def read(self, flat: torch.Tensor) -> None:
        """Takes means and variances over from what a member wrote."""
        start = 0
        for buffer in self._shared:
            buffer.copy_(flat[start : start + buffer.numel()].view(buffer.shape))
            start += buffer.numel()
