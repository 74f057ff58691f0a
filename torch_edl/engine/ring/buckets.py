"""Flat buffers in which the gradients of many parameters travel together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

# As DistributedDataParallel: a small first bucket lets the first collective begin early.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


class Bucket:
    """The gradients of parameters of one type and device, and ``extra`` numbers behind them."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], kind: tuple[torch.dtype, torch.device], extra: int
    ) -> None:
        length = sum(p.numel() for p in parameters)
        self.flat = torch.zeros(length + extra, dtype=kind[0], device=kind[1])
        self.extra = self.flat[length:]
        self.views: list[torch.Tensor] = []
        start = 0
        for parameter in parameters:
            self.views.append(self.flat[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
        self.pending = len(parameters)
        """Parameters whose gradient the bucket does not have yet."""

    def reset(self) -> None:
        """No gradient is in the bucket."""
        self.pending = len(self.views)


def make_buckets(
    parameters: Sequence[nn.Parameter], extra: int
) -> tuple[list[Bucket], list[tuple[Bucket, torch.Tensor]]]:
    """Buckets in about the order in which a backward fills them.

    Args:
        extra: numbers of float32 behind the gradients of the last bucket.

    Returns:
        The buckets; for each parameter its bucket and its part of that bucket, a view.
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
