"""Gradients that travel together: parameters of one type in flat tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

# As DistributedDataParallel: a small first bucket lets the first collective begin early.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


class Bucket:
    """Parameters of one type whose gradients travel together, and ``extra`` lanes behind them."""

    def __init__(self, parameters: Sequence[nn.Parameter], extra: int, like: torch.Tensor) -> None:
        self.parameters = list(parameters)
        length = sum(p.numel() for p in parameters)
        self.flat = torch.zeros(length + extra, dtype=like.dtype, device=like.device)
        self.extra = self.flat[length:]
        self.views: list[torch.Tensor] = []
        start = 0
        for parameter in self.parameters:
            self.views.append(self.flat[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
        self.pending = len(self.parameters)


def make_buckets(
    parameters: Sequence[nn.Parameter], extra: int
) -> tuple[list[Bucket], dict[int, tuple[int, int]]]:
    """Buckets in the order in which a backward will have filled them, about.

    Args:
        extra: lanes of float32 behind the last one.

    Returns:
        The buckets, and by the number of a parameter its bucket and its place there.
    """
    numbers = {id(p): n for n, p in enumerate(parameters)}
    kinds: dict[tuple[torch.dtype, torch.device], list[list[nn.Parameter]]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        groups = kinds.setdefault(kind, [[]])
        limit = FIRST_BUCKET_BYTES if len(groups) == 1 else BUCKET_BYTES
        if sizes.get(kind, 0) >= limit:
            groups.append([])
            sizes[kind] = 0
        groups[-1].append(parameter)
        sizes[kind] = sizes.get(kind, 0) + parameter.nbytes
    plan = [(group, kind) for kind, groups in kinds.items() for group in groups]
    plan.sort(key=lambda each: -max(numbers[id(p)] for p in each[0]))
    buckets = []
    for index, (group, (dtype, device)) in enumerate(plan):
        last = index == len(plan) - 1 and dtype is torch.float32
        like = torch.empty(0, dtype=dtype, device=device)
        buckets.append(Bucket(group, extra if last else 0, like))
    if not plan or plan[-1][1][0] is not torch.float32:
        device = plan[-1][1][1] if plan else torch.device("cpu")
        buckets.append(Bucket([], extra, torch.empty(0, device=device)))
    place = {
        numbers[id(parameter)]: (index, slot)
        for index, bucket in enumerate(buckets)
        for slot, parameter in enumerate(bucket.parameters)
    }
    return buckets, place
