"""What a script may not do while its model is on parameter servers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import torch_edl
from tests.unit.api.counting import numbers
from tests.unit.api.served import BATCH, STEPS, Count, Model, data, loop, prepared
from torch_edl.api import opening
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from data()


def test_what_servers_do_not_do_is_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    job, model, optimizer = prepared()
    records = data()
    ids = records[:BATCH][0]

    def refused(message: str, do: Callable[[], Any]) -> None:
        with pytest.raises(UsageError, match=message):
            do()

    def first_batch(dataset: Any, batch_size: int = BATCH, **options: Any) -> Callable[[], Any]:
        return lambda: next(iter(job.loader(dataset, batch_size=batch_size, **options)))

    refused("called twice", lambda: job.prepare(model, optimizer))
    for name, value in (("accumulate", 2), ("global_batch_size", 60), ("drop_last", True)):
        refused(f"{name}={value}", first_batch(records, **{name: value}))
    refused("cannot be cut into tasks", first_batch(Stream()))
    refused("with the first batch; run the model in a loop", lambda: model(ids))
    model.out(torch.ones(1, 6)).sum().backward()
    refused(r"outside of a loop over job\.loader", optimizer.step)
    optimizer.zero_grad()
    optimizer.step()  # moves nothing

    batches = iter(job.loader(records, batch_size=BATCH))
    next(batches)
    refused("an evaluation inside the loop", lambda: job.collect(lambda *_: b"", lambda _: None))
    refused("a loader of a second dataset", first_batch(data()))
    refused("batch_size=7: the first loader had 15", first_batch(records, 7))
    other = pb.ScriptData(records=7, epochs=1, batch_size=1, records_per_task=1)
    refused("this process has 7 records, another had 750", lambda: job._session.report_data(other))
    penalty = model(ids).sum() + model.rows.weight.norm()
    refused("a penalty adds nothing", penalty.backward)
    refused(
        "leave it out of the inputs, or call backward",
        lambda: torch.autograd.grad(model(ids).sum(), list(model.parameters())),
    )
    refused(
        r"torch.save\(model\).*'rows' are on parameter servers; job.state_dict\(\) gathers",
        lambda: torch.save(model, io.BytesIO()),
    )
    refused(r"copy.deepcopy\(model\): the rows of", lambda: copy.deepcopy(model))


def test_parts_that_servers_cannot_run_are_refused(
    start: Callable[..., Stub], tmp_path: Path
) -> None:
    start(servers=1)
    with pytest.raises(UsageError, match="give --checkpoint-dir to torch-edl run"):
        prepared(checkpoint_dir=tmp_path / "mine")
    opening._current.close()
    start(servers=1)
    model = Model(torch_edl.nn.Embedding(None, 4))
    halves = [torch.optim.SGD(p, lr=1.0) for p in (model.rows.parameters(), model.out.parameters())]
    with pytest.raises(UsageError, match="2 optimizers; parameter servers run one"):
        torch_edl.init().prepare(model, halves)
    opening._current.close()
    start(servers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UsageError, match="scheduler_interval='epoch'"):
        torch_edl.ElasticTrainer(
            model, nn.MSELoss(), optimizer, scheduler=scheduler, scheduler_interval="epoch"
        )


def test_a_momentum_that_changes_is_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    model = Model(torch_edl.nn.Embedding(None, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    job = torch_edl.init()
    job.prepare(model, optimizer, scheduler)
    with pytest.raises(UsageError, match=r"Adam began with beta1 0.95 .*cycle_momentum=False"):
        loop(job.loader(data(), batch_size=BATCH), model, optimizer, scheduler)
    job.close()


def test_gathering_by_hand_is_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    job, model, optimizer = prepared()

    def train() -> None:
        for number, (ids, labels) in enumerate(job.loader(data(), batch_size=BATCH)):
            (model(ids) - labels).pow(2).mean().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(UsageError, match="gathered by hand"):
        train()


class PartlyFrozen(Count):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return super().forward(numbers) - self.other.sum()


def test_a_loop_does_to_the_servers_what_it_does_to_the_model(start: Callable[..., Stub]) -> None:
    """Or it raises: what servers do not take over is never lost silently."""
    start(servers=1)
    job, model, optimizer = prepared(PartlyFrozen())
    with torch.no_grad():
        model.weight.fill_(100.0)  # as load_state_dict does
    loader = iter(job.loader(numbers(32), batch_size=4))

    def backward() -> None:
        (numbers,) = next(loader)
        optimizer.zero_grad()
        model(numbers).backward()

    backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 0.5
    with pytest.raises(UsageError, match=r"rows.*cannot become a tensor \(3, 1\)"):
        model.rows.weight.grad = torch.zeros(3, 1)
    optimizer.step()
    with pytest.raises(UsageError, match="second step of the optimizer in one batch"):
        optimizer.step()
    backward()
    state = job.state_dict()
    assert state["weight"].item() == 102
    assert state["rows.vectors"].sum().item() == 4 * 0.5
    model.other.requires_grad_(True)
    model(torch.arange(2)).backward()
    with pytest.raises(UsageError, match=r"shape \(1,\) has a gradient and did not have"):
        optimizer.step()
    model.other.requires_grad_(False)
    with torch.no_grad():
        model.weight.clamp_(-1, 1)
    with pytest.raises(UsageError, match="parameter weight was changed other than by"):
        backward()
    job.close()
