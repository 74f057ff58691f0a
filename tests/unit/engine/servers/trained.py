"""A model, its body and real servers: what the tests of the engine train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import torch_edl
from torch_edl.config import DataConfig, JobConfig, TrainConfig
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.interfaces import Batch, Minibatch, Update
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.ps_client.partition import PartitionedIds, TableIds
from torch_edl.pytorch.contract import Contract
from torch_edl.pytorch.servers.served import ServedTorchModel
from torch_edl.pytorch.step import Step, contract_body
from torch_edl.training.contract.argument_order import labels_first
from torch_edl.wire import master_pb2 as pb

TOKEN = "strategy-test"
IDS = 50
BATCH = 8
TABLES = ("wide", "deep")
Make = Callable[..., torch.optim.Optimizer]


class Model(nn.Module):
    """Two tables, a batch norm's buffers, a frozen and an unused parameter."""

    def __init__(self, torch_rows: torch.Tensor | None = None) -> None:
        super().__init__()
        self.wide: nn.Module
        self.deep: nn.Module
        if torch_rows is None:
            self.wide = torch_edl.nn.Embedding(None, 1, initializer="zeros")
            self.deep = torch_edl.nn.Embedding(IDS, 4, initializer="normal")
        else:
            self.wide = nn.Embedding.from_pretrained(torch.zeros(IDS, 1), freeze=False)
            self.deep = nn.Embedding.from_pretrained(torch_rows, freeze=False)
        self.linear = nn.Linear(12, 6)
        self.out = nn.Linear(6, 1)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.deep(ids).flatten(1)
        return self.out(self.linear(rows).tanh()) + self.wide(ids).sum(1)


def mse(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return (labels - predictions).pow(2).mean()


def contract(model: nn.Module, optimizer: Make, loss: Callable[..., Any] = mse) -> Contract:
    return Contract(
        path="m.py", model=lambda: model, loss=labels_first(loss), optimizer=optimizer,
        feed=lambda *_: None,
    )  # fmt: skip


class Trained:
    """An engine, and the body of a model file that goes through updates with it."""

    def __init__(
        self, model: nn.Module, make: Make, servers: list[pb.Server], scheduler: object = None,
        **train: object,
    ) -> None:  # fmt: skip
        config = JobConfig(
            name="t",
            model_file="m.py",
            data=DataConfig(batch_size=BATCH),
            train=TrainConfig(**train),  # type: ignore[arg-type]
        )
        optimizer = make(model.parameters())
        made = scheduler(optimizer) if callable(scheduler) else None
        self.step = Step(contract(model, make), model, on_nan=config.train.on_nan, log_layers="")
        self.served = ServedTorchModel(
            model, optimizer, made, forward=self.step.forward, steps_at=config.minibatches_before
        )
        self.engine = ServersEngine(self.served, config=config, token=TOKEN, status=WorkerStatus())
        self.engine.connect(pb.Cluster(incarnation=1, servers=servers))
        self._body = contract_body(self.step, self.engine, optimizer, made)

    def compute(self, update: Update) -> bool:
        for minibatch in update.minibatches:
            update.losses.append(self._body(self.engine.begin(update, minibatch)))
        return self.engine.commit(update)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.served.gathered(self.engine.settled())

    def train_in_step(self, steps: list[Batch]) -> list[Update]:
        """Trains with parameters that are exactly as old as the staleness allows."""
        lease = HeldLease(lease_id=1, task_id=0, start=0, end=len(steps) * BATCH)
        updates = [
            update(lease, [step], first=k * BATCH, last=(k + 1) * BATCH)
            for k, step in enumerate(steps)
        ]
        for one in updates[: self.engine.depth]:
            self.engine.prefetch(one)
        for index, one in enumerate(updates):
            for later in updates[index + self.engine.depth :][:1]:
                self.engine.prefetch(later)
            assert self.compute(one)
            self.engine.acknowledged(wait=True)
        return updates

    def train(self, steps: list[Batch], each: int = 1) -> None:
        lease = HeldLease(lease_id=1, task_id=0, start=0, end=len(steps) * BATCH)
        updates = [
            update(lease, steps[i : i + each], first=i * BATCH, last=(i + each) * BATCH)
            for i in range(0, len(steps), each)
        ]
        done = []
        self.engine.prefetch(updates[0])
        for index, one in enumerate(updates):
            if index + 1 < len(updates) and self.engine.depth:
                self.engine.prefetch(updates[index + 1])
            assert self.compute(one)
            done += self.engine.acknowledged()
        done += self.engine.acknowledged(wait=True)
        assert done == updates
        assert self.engine.committed(lease) == len(steps) * BATCH


def update(lease: HeldLease, batches: list[Batch], *, first: int = 0, last: int = BATCH) -> Update:
    minibatches = [Minibatch(n, first + n * BATCH, b.size, b) for n, b in enumerate(batches)]
    return Update(
        first, last, minibatches, len(batches), last - first, replace(lease, incarnation=1)
    )


def batches(count: int, *, every_id: bool) -> list[Batch]:
    """Batches of ids; with ``every_id`` each batch uses all of them, so lazy equals dense."""
    torch.manual_seed(1)
    made = []
    for _ in range(count):
        if every_id:
            ids = torch.cat([torch.randperm(IDS), torch.randint(0, IDS, (10,))]).view(-1, 3)
        else:
            ids = torch.randint(0, IDS, (BATCH, 3))
        made.append(Batch(ids, ids.float().mean(1, keepdim=True) / IDS, len(ids)))
    return made


def rows_of(made: Trained, table: str, dim: int) -> torch.Tensor:
    client = made.engine._servers
    ids = PartitionedIds.of(np.arange(IDS), client.servers)
    (rows,) = client.pull([TableIds(table, dim, ids)], dense=False, read_only=True).wait().rows
    return torch.from_numpy(rows[ids.inverse])


def compare(ours: Model, made: Trained, theirs: Model) -> None:
    with made.engine.evaluating():
        pass  # pulls what the servers have
    for name, parameter in theirs.named_parameters():
        if name not in ("wide.weight", "deep.weight"):
            torch.testing.assert_close(
                dict(ours.named_parameters())[name], parameter, rtol=1e-5, atol=1e-5
            )
    for table, dim in (("wide", 1), ("deep", 4)):
        wanted = theirs.get_parameter(f"{table}.weight").detach()
        torch.testing.assert_close(rows_of(made, table, dim), wanted, rtol=1e-5, atol=1e-5)


def sgd(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)  # type: ignore[arg-type]
