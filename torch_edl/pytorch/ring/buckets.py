"""Flat buffers for the gradients of many parameters, and the running statistics of normalization
layers, which a forward pass changes without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from torch_edl.pytorch.torch_internals import NORMALIZATIONS

# As in DistributedDataParallel: a small first bucket lets the first collective start early.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


class Bucket:
    """Gradients of parameters of one dtype and device, followed by ``extra`` numbers."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], kind: tuple[torch.dtype, torch.device], extra: int
    ) -> None:
        length = sum(p.numel() for p in parameters)
        self.flat = torch.zeros(length + extra, dtype=kind[0], device=kind[1])
        """All numbers of the bucket (n,)."""
        self.gradients = self.flat[:length]
        """View of the gradients (n,)."""
        self.extra = self.flat[length:]
        """View of the numbers after the gradients."""
        self.views: list[torch.Tensor] = []
        """View of each gradient, in the shape of its parameter."""
        start = 0
        for parameter in parameters:
            self.views.append(self.flat[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
        self.pending = len(parameters)
        """Number of parameters whose gradient is not in the bucket yet."""

    def reset(self) -> None:
        """Mark all gradients as missing."""
        self.pending = len(self.views)


def make_buckets(
    parameters: Sequence[nn.Parameter], extra: int
) -> tuple[list[Bucket], list[tuple[Bucket, torch.Tensor]]]:
    """Create buckets, roughly in the order in which a backward pass fills them.

    Args:
        extra: number of float32 values behind the gradients of the last bucket.

    Returns:
        The buckets, and for each parameter its bucket and the view of its part of the bucket.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[list[int]]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for number, parameter in reversed(list(enumerate(parameters))):
        kind = (parameter.dtype, parameter.device)
        groups = kinds.setdefault(kind, [[]])
        limit = FIRST_BUCKET_BYTES if len(groups) == 1 else BUCKET_BYTES
        if sizes.get(kind, 0) >= limit:
            groups.append([])
            sizes[kind] = 0
        groups[-1].append(number)
        sizes[kind] = sizes.get(kind, 0) + parameter.nbytes
    plan = [(group, kind) for kind, groups in kinds.items() for group in groups]
    plan.sort(key=lambda each: -max(each[0]))
    if not plan or plan[-1][1][0] is not torch.float32:
        device = plan[-1][1][1] if plan else torch.device("cpu")
        plan.append(([], (torch.float32, device)))
    buckets = []
    places: dict[int, tuple[Bucket, torch.Tensor]] = {}
    for index, (group, kind) in enumerate(plan):
        behind = extra if index == len(plan) - 1 else 0
        bucket = Bucket([parameters[number] for number in group], kind, behind)
        buckets.append(bucket)
        places |= {n: (bucket, view) for n, view in zip(group, bucket.views, strict=True)}
    return buckets, [places[number] for number in range(len(parameters))]


class RunningStatistics:
    """Running means and variances of a model's BatchNorm and InstanceNorm layers.

    All members of a ring use the values of one member, as in DistributedDataParallel.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, NORMALIZATIONS)]
        self._buffers = [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
        self._shared = [
            buffer
            for layer in layers
            for buffer in (layer.running_mean, layer.running_var)
            if buffer is not None
        ]
        self._saved = [buffer.clone() for buffer in self._buffers]
        self.numel = sum(buffer.numel() for buffer in self._shared)
        """Number of means and variances."""

    @torch.no_grad()
    def save(self) -> None:
        """Save the values before an update."""
        for saved, buffer in zip(self._saved, self._buffers, strict=True):
            saved.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved values, undoing the forward passes since :meth:`save`."""
        for saved, buffer in zip(self._saved, self._buffers, strict=True):
            buffer.copy_(saved)

    def write(self, flat: torch.Tensor) -> None:
        """Copy means and variances into a tensor of ``numel`` numbers."""
        if self._shared:
            flat.copy_(torch.cat([b.detach().reshape(-1).float() for b in self._shared]))

    def read(self, flat: torch.Tensor) -> None:
        """Load means and variances from a tensor that a member wrote."""
        start = 0
        for buffer in self._shared:
            buffer.copy_(flat[start : start + buffer.numel()].view(buffer.shape))
            start += buffer.numel()
