"""What a worker makes of a model file."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from torch_edl.config import JobConfig
from torch_edl.errors import ContractError
from torch_edl.pytorch.contract import load_contract
from torch_edl.pytorch.model_file import ModelFile

MODEL = """
import torch
from torch_edl.data.sources import IndexedSource
def model(): return torch.nn.Linear(1, 1)
loss = torch.nn.MSELoss()
def optimizer(params): return torch.optim.SGD(params, lr=0.1)
def feed(records, mode, metadata): ...
def data_source(paths): return [IndexedSource([b"1", b"2"], name) for name in ("low", "high")]
"""


def model_file(folder: Path, text: str) -> ModelFile:
    path = folder / "own.py"
    path.write_text(textwrap.dedent(text))
    return ModelFile(load_contract(str(path)), JobConfig(name="t", model_file=str(path)))


def test_files_may_be_evaluated_beside_a_source_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("n\n1\n2\n3\n")
    made = model_file(tmp_path, MODEL)
    assert [(s.name, s.records, s.size) for s in made.shards()] == [("low", 2, 0), ("high", 2, 0)]
    assert made.feeder.reader.source("high").read(1, 2) == [b"2"]
    assert made.feeder.reader.source(str(tmp_path / "test.csv")).count == 3


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="two sources named 'low'; give each a name"):
        model_file(tmp_path, MODEL.replace('("low", "high")', '("low", "low")'))
