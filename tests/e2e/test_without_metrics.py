"""A model file without ``eval_metrics_fn``: evaluations report the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

MODEL = """
import torch

def model(): return torch.nn.Linear(1, 1)
def loss(labels, predictions): return ((predictions - labels) ** 2).mean()
def optimizer(params): return torch.optim.SGD(params, lr=0.0)

def feed(records, mode, metadata):
    x = torch.tensor(records.column("x").to_numpy()).float().view(-1, 1)
    return x, 2 * x
"""


@pytest.mark.slow
def test_the_loss_is_reported(place: Any, tmp_path: Path) -> None:
    model, data = tmp_path / "net.py", tmp_path / "x.csv"
    model.write_text(MODEL)
    data.write_text("x\n" + "".join(f"{n % 7}\n" for n in range(60)))
    done = place(f"run {model} --data {data} --eval-data {data} --summary s.json")
    assert "metrics: loss " in done.text
    assert place.json("s.json")["evaluations"][-1]["metrics"].keys() == {"loss"}
