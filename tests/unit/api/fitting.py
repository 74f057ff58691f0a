"""Models, data and a plain loop for the tests of the trainer class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import torch_edl

N, BATCH = 100, 8


def accuracy(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return (predictions.argmax(1) == labels).float().mean()


def data(seed: int = 0) -> TensorDataset:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


class Rows(Dataset[dict[str, Any]]):
    """A dict for each record, as Hugging Face's datasets give them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = data()[index]
        return {"x": x, "labels": int(y)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from data()


class Named(nn.Module):
    """Takes its input by name."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def trainer(
    model: nn.Module | None = None, lr: float = 0.05, **options: Any
) -> torch_edl.ElasticTrainer:
    model = model or net()
    options.setdefault("loss", nn.CrossEntropyLoss())
    if "optimizer" not in options:
        options["optimizer"] = torch.optim.Adam(model.parameters(), lr=lr)
    return torch_edl.ElasticTrainer(model, **options)


def plain_loop(
    epochs: int = 2,
    batch: int = BATCH,
    clip: float = 0.0,
    schedule: Callable[[Any], Any] | None = None,
    bf16: bool = False,
) -> nn.Module:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = schedule(optimizer) if schedule else None
    for _ in range(epochs):
        for x, y in DataLoader(data(), batch_size=batch):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
    return model


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def fit(made: torch_edl.ElasticTrainer, dataset: Any = None, **options: Any) -> list[Any]:
    options = {"batch_size": BATCH, "shuffle": False, "epochs": 2, "verbose": False} | options
    return made.fit(data() if dataset is None else dataset, **options)


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
