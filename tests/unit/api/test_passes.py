"""Loops that are left, and loops within loops: in a notebook both happen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import torch_edl
from torch_edl.errors import UsageError

DATA = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))


@pytest.fixture
def job() -> Iterator[torch_edl.Job]:
    made = torch_edl.init()
    yield made
    made.close()


def prepared(job: torch_edl.Job) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return model, optimizer


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def test_a_loop_that_was_interrupted_does_not_stand_in_the_way(job: torch_edl.Job) -> None:
    """The traceback of an interrupt keeps the iterator alive, in the middle of an update."""
    model, optimizer = prepared(job)
    kept = iter(job.loader(DATA, batch_size=4))
    x, y = next(kept)
    train(model, optimizer, x, y)
    next(kept)
    before = model.weight.detach().clone()
    batches = 0
    for x, y in job.loader(DATA, batch_size=4, epochs=2):
        train(model, optimizer, x, y)
        batches += 1
    assert batches == 6
    assert job.step == 7
    assert not torch.equal(before, model.weight)
    kept.close()
    assert job.step == 7


def test_a_loop_within_a_loop_is_refused(job: torch_edl.Job) -> None:
    model, optimizer = prepared(job)
    outer = iter(job.loader(DATA, batch_size=4))
    train(model, optimizer, *next(outer))
    for x, y in job.loader(DATA, batch_size=12):
        train(model, optimizer, x, y)
    with pytest.raises(UsageError, match="inside this loop"):
        next(outer)


def test_what_is_gathered_is_kept_for_those_who_come_later(job: torch_edl.Job) -> None:
    prepared(job)
    assert job.collect(lambda rank, world: b"%d/%d" % (rank, world), len) == 1
    assert job.gather(lambda rank, world: b"part") == [b"part"]
    engine = job._part.engine
    assert engine is not None
    assert engine.replica.position.results == {"0": 1, "1": None}
    assert engine.replica.position.progress == 2
    assert job.step == 0
