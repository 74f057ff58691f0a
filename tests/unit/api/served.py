"""What the tests of scripts on parameter servers train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import torch_edl
from tests.waiting import HANG_S
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

IDS, STEPS, BATCH = 30, 50, 15


class Model(nn.Module):
    """An embedding and two layers with a buffer of their own."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = embedding
        # A bias before the norm would have a gradient of rounding errors only.
        self.hidden = nn.Linear(8, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        # Two lookups, so that an id has gradients of both.
        rows = torch.cat([self.rows(ids[:, 0]), self.rows(ids[:, 1])], 1)
        return self.out(self.norm(self.hidden(rows)).tanh())


class Count(nn.Module):
    """With SGD at rate 1 ``weight`` counts the records, and each row those of its id."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch_edl.nn.Embedding(None, 1, initializer="zeros")
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return -self.rows(numbers).sum() - len(numbers) * self.weight.sum()


def plain_embedding() -> nn.Embedding:
    embedding = nn.Embedding(IDS, 4)
    nn.init.constant_(embedding.weight, 0.1)
    return embedding


def unbounded_embedding() -> nn.Module:
    return torch_edl.nn.Embedding(None, 4, initializer=("constant", {"value": 0.1}))


def data() -> TensorDataset:
    """Each batch has all ids, so that optimizers which move all rows equal those that do not."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.cat([torch.randperm(IDS, generator=generator).view(-1, 2) for _ in range(STEPS)])
    return TensorDataset(ids, ids.float().mean(1, keepdim=True) / IDS)


def prepared(model: nn.Module | None = None, **options: Any) -> tuple[Any, Any, Any]:
    model = model or Model(unbounded_embedding())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 if isinstance(model, Count) else 0.5)
    job = torch_edl.init(**options)
    job.prepare(model, optimizer)
    return job, model, optimizer


def loop(
    batches: Any, model: nn.Module, optimizer: Any, scheduler: Any = None, *, clip: float = 0.0
) -> list[float]:
    losses = []
    for ids, labels in batches:
        optimizer.zero_grad()
        loss = (model(ids) - labels).pow(2).mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def status_of(master: Stub) -> Any:
    return master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
