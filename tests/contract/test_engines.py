"""One suite over all engines: what a training loop may rely on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.engine.conftest import TOKEN, start_servers
from tests.unit.engine.servers.trained import contract
from torch_edl.config import JobConfig, TrainConfig
from torch_edl.engine.local import LocalEngine
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.interfaces import Batch, Engine, LeasedEngine, Minibatch, Update
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.reducer import ReplicatedTorchModel as ReplicatedModel
from torch_edl.pytorch.servers.served import ServedTorchModel
from torch_edl.pytorch.step import Step, contract_body
from torch_edl.wire import master_pb2 as pb

__all__ = ["start_servers"]

BATCH = 4


class Count(nn.Module):
    """SGD with rate 1 adds 1 to the weight for each update: its gradient is -1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


class Driven:
    """An engine, and the body of a model file."""

    def __init__(self, kind: str, start: Callable[..., list[pb.Server]]) -> None:
        self.model = Count()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        made = contract(self.model, torch.optim.SGD, lambda labels, p: -p.mean())
        step = Step(made, self.model, on_nan="skip", log_layers="")
        status = WorkerStatus()
        self.engine: Engine
        self.leased: LeasedEngine | None = None
        if kind == "ring":
            self.engine = RingEngine(ReplicatedModel(Replica(self.model, [optimizer], [])), None)
        elif kind == "local":
            self.engine = self.leased = LocalEngine(Replica(self.model, [optimizer]), status=status)
        else:
            config = JobConfig(name="t", model_file="m.py", train=TrainConfig(strategy="ps"))
            forward = step.forward if kind == "servers" else None
            served = ServedTorchModel(self.model, optimizer, None, forward=forward)
            self.engine = self.leased = ServersEngine(
                served, config=config, token=TOKEN, status=status
            )
        if self.leased is not None:
            servers = start(2) if kind.startswith("servers") else []
            self.leased.connect(pb.Cluster(incarnation=1, servers=servers))
        self.body = contract_body(step, self.engine, optimizer, None)

    def compute(self, update: Update) -> bool:
        for minibatch in update.minibatches:
            update.losses.append(self.body(self.engine.begin(update, minibatch)))
        return self.engine.commit(update)

    def count(self) -> float:
        if self.leased is not None:
            self.leased.acknowledged(wait=True)
        with self.engine.evaluating():
            return self.model.w.item()


def update(number: int, value: float = 1.0) -> Update:
    first = number * BATCH
    x = torch.full((BATCH, 1), value)
    minibatch = Minibatch(0, first, BATCH, Batch(x, x, BATCH))
    lease = HeldLease(lease_id=1, task_id=0, end=100, incarnation=1)
    return Update(first, first + BATCH, [minibatch], 1, BATCH, lease)


@pytest.fixture(params=["local", "ring", "servers", "servers, script"])
def driven(request: Any, start_servers: Callable[..., list[pb.Server]]) -> Any:
    made = Driven(request.param, start_servers)
    yield made
    made.engine.close()


def test_each_update_is_in_the_model_once(driven: Driven) -> None:
    for number in range(5):
        assert driven.compute(update(number))
    assert driven.count() == 5
    assert not driven.engine.broken


def test_an_update_without_a_gradient_counts_and_changes_nothing(driven: Driven) -> None:
    assert driven.compute(update(0))
    bad = update(1, math.nan)
    assert driven.compute(bad)
    assert bad.not_finite == 1
    assert driven.compute(update(2))
    assert driven.count() == 2


def test_what_was_committed_is_acknowledged_once_and_in_order(driven: Driven) -> None:
    if driven.leased is None:
        pytest.skip("the position of a ring says it")
    done = []
    updates = [update(number) for number in range(4)]
    for one in updates:
        driven.compute(one)
        done += driven.leased.acknowledged()
    done += driven.leased.acknowledged(wait=True)
    assert done == updates
    assert driven.leased.committed(HeldLease(lease_id=1, task_id=0, end=100)) == 4 * BATCH


def test_a_body_that_leaves_within_an_update_may_begin_another(driven: Driven) -> None:
    one = update(0)
    (minibatch,) = one.minibatches
    driven.engine.begin(one, minibatch)
    assert not driven.engine.settle()
    assert driven.compute(update(0))
    assert driven.count() == 1


def test_an_evaluation_sees_the_model_as_it_is(driven: Driven) -> None:
    driven.compute(update(0))
    if driven.leased is not None:
        driven.leased.acknowledged(wait=True)
    with driven.engine.evaluating() as prepare, torch.no_grad():
        assert driven.model.eval()(prepare(torch.ones(2, 1))).tolist() == [[1.0], [1.0]]
    driven.model.train()
    driven.compute(update(1))
    assert driven.count() == 2
