"""``max_norm`` changes the rows of an embedding in a process without the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_edl
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.pytorch.contract import load_contract
from torch_edl.pytorch.model_file import ModelFile
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub


def test_max_norm_is_refused_where_others_have_the_model(start: Callable[..., Stub]) -> None:
    """Before the master is asked for the strategy."""
    start(servers=1)
    job = torch_edl.init()
    for kind in (nn.Embedding, nn.EmbeddingBag):
        model = nn.Sequential(kind(8, 2, max_norm=1.0), nn.Linear(2, 1))
        with pytest.raises(UsageError, match=r"embedding 0: max_norm=1\.0 shortens rows"):
            job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))


def test_max_norm_works_in_one_process(jobs: Any) -> None:
    model = nn.Sequential(nn.Embedding(8, 2, max_norm=1.0), nn.Linear(2, 1))
    jobs().prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))


MODEL = """
import torch
def model(): return torch.nn.Embedding(8, 2, max_norm=1.0)
loss = torch.nn.MSELoss()
def optimizer(params): return torch.optim.SGD(params, lr=0.1)
def feed(records, mode, metadata): ...
"""


@pytest.mark.parametrize("strategy", ["ps", "allreduce", "local"])
def test_max_norm_in_a_model_file_is_refused_where_others_have_the_model(
    tmp_path: Path, strategy: str
) -> None:
    path = tmp_path / "short.py"
    path.write_text(MODEL)
    made = ModelFile(load_contract(str(path)), JobConfig(name="t", model_file=str(path)))
    if strategy == "local":
        made.apply(pb.Start(strategy=strategy))
        return
    with pytest.raises(UsageError, match=r"max_norm=1\.0 shortens rows"):
        made.apply(pb.Start(strategy=strategy))
