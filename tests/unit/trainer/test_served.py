"""A script's own loop on real parameter servers, with a real master."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import torch_edl
from torch_edl import master_host
from torch_edl.config import ClusterConfig, JobConfig, TrainConfig
from torch_edl.errors import UsageError
from torch_edl.trainer import job as job_module
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

IDS, STEPS, BATCH = 30, 50, 15
CLIP = 0.05
Make = Callable[[Any], torch.optim.Optimizer]


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


def plain_embedding() -> nn.Embedding:
    embedding = nn.Embedding(IDS, 4)
    nn.init.constant_(embedding.weight, 0.1)
    return embedding


def data() -> TensorDataset:
    """Each batch has all ids, so that optimizers which move all rows equal those that do not."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.cat([torch.randperm(IDS, generator=generator).view(-1, 2) for _ in range(STEPS)])
    return TensorDataset(ids, ids.float().mean(1, keepdim=True) / IDS)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stub]]:
    """``start(**train)``: a master for this process, which is a worker of it from then on."""
    masters: list[master_host.Master] = []
    stubs: list[Stub] = []
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def start_master(*, strategy: str = "ps", servers: int = 2, **train: Any) -> Stub:
        config = JobConfig(
            name=f"served-{len(masters)}",
            kind="script",
            model_file="script.py",
            train=TrainConfig(strategy=strategy, **train),
            cluster=ClusterConfig(max_workers=1, servers=servers),
        )
        master = master_host.host(config)
        masters.append(master)
        monkeypatch.setenv("TORCH_EDL_MASTER", master.address)
        monkeypatch.setenv("TORCH_EDL_TOKEN", master.token)
        service = pb.DESCRIPTOR.services_by_name["Master"]
        stubs.append(Stub(service, master.address, master.token))
        return stubs[-1]

    yield start_master
    if job_module._current is not None:
        job_module._current.close()
    for stub in stubs:
        stub.close()
    for master in masters:
        assert master.hosted is not None
        master.hosted.stop(grace_s=0)  # its servers follow it
    signal.signal(signal.SIGTERM, before)


def loop(
    batches: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    *,
    clip: bool,
) -> list[float]:
    losses = []
    for ids, labels in batches:
        optimizer.zero_grad()
        loss = (model(ids) - labels).pow(2).mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("table", ["swapped", "unbounded"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_50_steps_equal_a_plain_loop(
    start: Callable[..., Stub], name: str, table: str, clip: bool
) -> None:
    start(large_embedding=10)
    records = data()
    theirs = Model(plain_embedding())
    optimizer = OPTIMIZERS[name](theirs.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    loader = torch.utils.data.DataLoader(records, batch_size=BATCH)
    wanted = loop(loader, theirs, optimizer, scheduler, clip=clip)

    embedding: nn.Module = plain_embedding()
    if table == "unbounded":
        embedding = torch_edl.nn.Embedding(None, 4, initializer=("constant", {"value": 0.1}))
    ours = Model(embedding)
    optimizer = OPTIMIZERS[name](ours.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    job = torch_edl.init()
    given = job.prepare(ours, optimizer, scheduler)
    assert given == (ours, optimizer, scheduler)
    got = loop(job.loader(records, batch_size=BATCH), ours, optimizer, scheduler, clip=clip)

    assert isinstance(ours.rows, torch_edl.nn.Embedding)
    assert job.step == STEPS
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-5, atol=1e-5)
    for part, value in theirs.state_dict().items():
        if part not in ("rows.weight", "norm.num_batches_tracked"):
            torch.testing.assert_close(ours.state_dict()[part], value, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        rows = ours.eval().rows(torch.arange(IDS))
    torch.testing.assert_close(rows, theirs.rows.weight.detach(), rtol=1e-5, atol=1e-5)
    job.close()
