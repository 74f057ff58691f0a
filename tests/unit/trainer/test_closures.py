"""``optimizer.step(closure)``: the closure computes the gradients, and they count as any others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import torch_edl
from tests.unit.engine.ring.rings import Member, office
from tests.unit.trainer.counting import counted, numbers
from torch_edl.errors import UsageError
from torch_edl.wire.channel import Stub


def train(job: Any, model: Any, optimizer: Any, loader: Any) -> list[float]:
    losses = []
    for (batch,) in loader:

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def gathering(member: Member) -> None:
    """Minibatches of 4 are gathered to updates of 16."""
    job = member.job()
    model, optimizer = counted(32, 16, job)
    loader = job.loader(numbers(32), batch_size=4, global_batch_size=16)
    losses = train(job, model, optimizer, loader)
    member.tell((model.w.tolist(), job.step, len(losses)))
    job.close()


@pytest.mark.parametrize("world", [1, 2])
def test_a_closure_counts_each_record_of_an_update_once(world: int) -> None:
    with office(world) as one:
        for each in [one.start(gathering) for _ in range(world)]:
            assert each.hear() == ([1.0] * 32, 2, 8 // world)


def test_an_optimizer_of_the_user_gets_no_closure(jobs: Any) -> None:
    class Own(torch.optim.SGD):
        """May run its closure as often as it likes."""

    job = jobs()
    model, _ = counted(8, 4, job)
    optimizer = Own(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    with pytest.raises(UsageError, match=r"Own.step\(closure\).*without a closure"):
        train(job, model, optimizer, job.loader(numbers(8), batch_size=4))


def test_servers_get_the_gradients_of_a_closure(start: Callable[..., Stub]) -> None:
    start(servers=1)
    model = torch.nn.Sequential(torch_edl.nn.Embedding(None, 1, initializer="zeros"))
    model.register_parameter("total", torch.nn.Parameter(torch.zeros(1)))
    model.forward = lambda ids: -model[0](ids).sum() - len(ids) * model.total.sum()  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job = torch_edl.init()
    job.prepare(model, optimizer)
    loader = job.loader(TensorDataset(torch.arange(32)), batch_size=4)
    assert len(train(job, model, optimizer, loader)) == 8
    state = job.state_dict()
    assert state["total"].item() == 32
    assert state["0.vectors"].flatten().tolist() == [1.0] * 32
    job.close()
