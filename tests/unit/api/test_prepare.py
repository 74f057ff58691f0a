"""Models and optimizers that ``prepare`` refuses, or warns of in a process that trains alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import torch_edl
from tests.unit.api.counting import told
from tests.unit.engine.ring.rings import Member
from torch_edl.errors import UsageError

DATA = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_sharded_model_is_refused(jobs: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    with pytest.raises(UsageError, match=r"parameter 0\.weight is sharded .* without torch_edl"):
        jobs().prepare(model, sgd(model))


@pytest.mark.usefixtures("process_group")
def test_a_model_that_sums_its_gradients_itself_is_refused(jobs: Any) -> None:
    model = nn.parallel.DistributedDataParallel(net())
    with pytest.raises(UsageError, match=r"DistributedDataParallel.* pass the model itself"):
        jobs().prepare(model, sgd(model))


def test_a_model_without_values_is_refused(jobs: Any) -> None:
    with torch.device("meta"):
        model = net()
    with pytest.raises(UsageError, match=r"0\.weight is on the device meta.*to_empty"):
        jobs().prepare(model, sgd(model))


def test_two_models_are_refused_with_the_way_to_give_them(jobs: Any) -> None:
    first, second = net(), net()
    optimizers = [sgd(first), sgd(second)]
    for given in ([first, second], optimizers), (first, second, *optimizers):
        with pytest.raises(UsageError, match=r"nn\.ModuleList"):
            jobs().prepare(*given)
    job = jobs(seed=1, several=True)
    job.prepare(nn.ModuleList([first, second]), optimizers)


@pytest.mark.parametrize("kind", ["LBFGS", "SparseAdam", "max_norm"])
def test_one_process_warns_of_what_several_refuse(
    jobs: Any, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    model: nn.Module = nn.Embedding(4, 2, max_norm=1.0) if kind == "max_norm" else net()
    optimizer = sgd(model) if kind == "max_norm" else getattr(torch.optim, kind)(model.parameters())
    with caplog.at_level(logging.WARNING):
        jobs().prepare(model, optimizer)
    assert "several processes" in caplog.text
    assert kind in caplog.text


def changing(job: Any, change: str) -> None:
    model, added = net(), nn.Linear(1, 1)
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    job.prepare(model, optimizer)
    for number, (x, y) in enumerate(job.loader(DATA, batch_size=4)):
        if number == 2 and change == "unfreeze":
            model[0].requires_grad_(True)
        elif number == 2:
            optimizer.add_param_group({"params": added.parameters()})
        optimizer.zero_grad()
        nn.functional.mse_loss(added(model(x)), y).backward()
        optimizer.step()


@pytest.mark.parametrize("change", ["unfreeze", "add"])
def test_one_process_refuses_parameters_that_a_ring_would_not_train(jobs: Any, change: str) -> None:
    job = jobs()
    with pytest.raises(UsageError, match=r"not trained at job\.prepare"):
        changing(job, change)
    assert job.step == 2


def test_one_process_warns_of_steps_outside_of_a_loop(
    jobs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job, model = jobs(), net()
    optimizer = sgd(model)
    job.prepare(model, optimizer)
    for _ in range(2):
        model(DATA.tensors[0]).sum().backward()
        optimizer.step()
    assert caplog.text.count("outside of a loop over job.loader()") == 1


def with_a_table(member: Member) -> None:
    model = nn.Sequential(torch_edl.nn.Embedding(None, 2), nn.Linear(2, 1))
    try:
        member.job().prepare(model, sgd(model))
        member.tell("prepared")
    except UsageError as error:
        member.tell(str(error))
    member.hear()


def test_a_ring_refuses_tables_whose_rows_it_does_not_sum() -> None:
    (said,) = told(1, with_a_table)
    assert "0: rows of torch_edl.nn embeddings are not summed over a ring" in said
