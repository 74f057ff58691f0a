"""Gradients of one process that are not finite, which would make the models of all NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import torch_edl
from tests.unit.api.counting import told
from tests.unit.engine.ring.rings import Member
from torch_edl import ElasticTrainer
from torch_edl.api.job import Job
from torch_edl.errors import NanLossError, UsageError

BAD = 13  # in the second update of 8 records: of rank 1, if there are two members


def data() -> TensorDataset:
    x = torch.linspace(-1, 1, 32)[:, None].repeat(1, 3)
    y = x.sum(1, keepdim=True)
    x[BAD, 2] = math.nan
    return TensorDataset(x, y)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def loop(job: Job, size: int, **options: Any) -> tuple[str, int, bool, float]:
    """The error, the number of updates, whether the model is finite, and its sum."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    job.prepare(model, optimizer)
    said = ""
    try:
        for x, y in job.loader(data(), batch_size=size, **options):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    except NanLossError as error:
        said = str(error)
    values = torch.cat([v.double().reshape(-1) for v in model.state_dict().values()])
    return said, job.step, bool(values.isfinite().all()), values.sum().item()


def member_loop(member: Member, on_nan: str, options: dict[str, Any]) -> None:
    job = member.job(on_nan=on_nan)
    ended = loop(job, 4, **options)
    if on_nan == "skip":
        assert job._session.progress.nan_updates == 1
    member.tell(ended)
    member.hear()


def trainer(member: Member, on_nan: str, options: dict[str, Any]) -> None:
    model = net()
    job = member.job(on_nan=on_nan)
    made = ElasticTrainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), job=job)
    said = ""
    try:
        made.fit(data(), batch_size=4, verbose=False, shuffle=False, **options)
    except NanLossError as error:
        said = str(error)
    values = torch.cat([v.double().reshape(-1) for v in model.state_dict().values()])
    member.tell((said, job.step, bool(values.isfinite().all()), values.sum().item()))
    member.hear()


@pytest.mark.parametrize("program", [member_loop, trainer])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_a_process_with_nan_stops_all_and_is_named(program: Any, options: dict[str, int]) -> None:
    first, second = ends = told(2, program, "stop", options)
    rank, at, records = (1, 1, "records 12 to 15") if not options else (1, 0, "records 8 to 15")
    for said, step, finite, _ in ends:
        assert f"the gradients of rank {rank} are not finite ({records} of the dataset)" in said
        assert (step, finite) == (at, True)
    assert first[3] == second[3]
    why = "the input features[1, 2] is nan (samples of this minibatch with such a value: 1 of 4)"
    assert why in second[0]
    assert "on_nan='skip'" in first[0]


@pytest.mark.parametrize("program", [member_loop, trainer])
def test_an_update_with_nan_is_left_out_by_all(program: Any) -> None:
    first, second = told(2, program, "skip", {})
    assert first == second
    assert first[:3] == ("", 4, True)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_one_process_does_the_same(jobs: Any, options: dict[str, int]) -> None:
    updates = options.get("accumulate", 1)
    said, step, finite, _ = loop(jobs(), 4, **options)
    assert "the gradients of rank 0 are not finite" in said
    assert "the input features[1, 2] is nan" in said
    assert (step, finite) == (3 // updates, True)
    assert loop(jobs(on_nan="skip"), 4, **options)[:3] == (
        "",
        8 // options.get("accumulate", 1),
        True,
    )


@pytest.mark.parametrize("option", ["argument", "command line"])
def test_parameter_servers_receive_no_nan(start: Any, option: str) -> None:
    def train(**options: Any) -> tuple[str, int, dict[str, torch.Tensor]]:
        job = torch_edl.init(**options)
        model = nn.ModuleDict({"rows": torch_edl.nn.Embedding(None, 2), "out": nn.Linear(2, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.prepare(model, optimizer)
        said = ""
        try:
            for x, y in job.loader(data(), batch_size=4):
                optimizer.zero_grad()
                made = model["out"](model["rows"](torch.arange(len(x)))) + x[:, 2:]
                nn.functional.mse_loss(made, y).backward()
                optimizer.step()
        except NanLossError as error:
            said = str(error)
        state = job.state_dict()
        job.close()
        return said, job.step, state

    start(on_nan="stop")
    said, step, state = train()
    assert "the gradients of rank 0 are not finite (records 12 to 15 of the dataset)" in said
    assert "the input features[1, 2] is nan" in said
    start(on_nan="skip" if option == "command line" else "stop")
    said, step, state = train(**{"on_nan": "skip"} if option == "argument" else {})
    assert (said, step) == ("", 8)
    assert all(value.isfinite().all() for value in state.values())


def test_a_script_may_repair_its_gradients(jobs: Any) -> None:
    job = jobs()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    for x, y in job.loader(data(), batch_size=4):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(0.0)
        optimizer.step()
    assert job.step == 8


def test_a_scaler_leaves_such_updates_out_itself(jobs: Any) -> None:
    job = jobs()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    job.prepare(model, optimizer, scaler=scaler)
    for x, y in job.loader(data(), batch_size=4):
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert job.step == 8
    assert all(p.isfinite().all() for p in model.parameters())


def test_another_word_is_refused(jobs: Any) -> None:
    with pytest.raises(UsageError, match="on_nan='warn': 'stop' or 'skip'"):
        jobs(on_nan="warn")
