"""A trained model goes from one job, strategy and shape of the cluster to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file

from tests.place import Place

# Counts: after n epochs from scratch every weight is n times the records that it saw.
MODEL = """
import numpy as np, torch
from torch import nn

class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = nn.Parameter(torch.zeros(1))
        self.rows = nn.Embedding(40, 2)
        nn.init.zeros_(self.rows.weight)

    def forward(self, numbers):
        return self.rows(numbers).sum() + self.total * len(numbers)

def model(): return Count()
def loss(labels, predictions): return -predictions
def optimizer(params): return torch.optim.SGD(params, lr=1.0)
def feed(records, mode, metadata):
    numbers = torch.from_numpy(records.column("n").to_numpy().astype(np.int64))
    return numbers, numbers
def eval_metrics_fn():
    return {"seen": lambda labels, predictions: float(predictions) / len(labels)}
"""
RUN = "run count.py --data data.parquet --batch-size 4 --records-per-task 8"
PS = "--strategy ps --ps 2 --large-embedding 10"
LOCAL = "--strategy local"


def counts(folder: Path) -> tuple[float, set[float]]:
    """The dense count, and the distinct counts of rows."""
    dense = load_file(folder / "model.safetensors")
    swapped = folder / "embeddings" / "rows.safetensors"
    rows = load_file(swapped)["vectors"] if swapped.exists() else dense["rows.weight"]
    assert rows.shape == (40, 2)
    return float(dense["total"][0]), set(rows.reshape(-1).tolist())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(PS, PS, id="ps", marks=pytest.mark.slow),
        pytest.param(PS, LOCAL, id="ps-local", marks=pytest.mark.slow),
        pytest.param(LOCAL, PS, id="local-ps", marks=pytest.mark.slow),
    ],
)
def test_a_job_begins_with_the_model_of_another(tmp_path: Path, first: str, then: str) -> None:
    """From its output and from its checkpoint: the values, and none of its watermarks."""
    place = Place(tmp_path)
    (place / "count.py").write_text(MODEL)
    pq.write_table(pa.table({"n": np.arange(40)}), place / "data.parquet")
    place(f"{RUN} {first} --epochs 2 --checkpoint-dir A --output first")
    assert counts(place / "first") == (80, {2})
    for source in ("first", "A"):
        if then != first:
            words = f"evaluate count.py --from {source} --data data.parquet --batch-size 1 --json"
            seen = json.loads(place(f"{words} {then}").stdout)["metrics"]["seen"]
            assert seen == 80 + 2 * 2  # the total, and a row of two
        place(f"{RUN} {then} --load {source} --output next-{source}")
        assert counts(place / f"next-{source}") == (120, {3})


DAYS = """
import numpy as np, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(20, 1)
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, n): return self.rows(n).squeeze(1) * self.scale
def model():
    torch.manual_seed(1)
    return Net()
def loss(labels, predictions): return torch.nn.functional.mse_loss(predictions, labels)
def optimizer(params): return torch.optim.Adagrad(params, lr=0.5)
def feed(records, mode, metadata):
    n = torch.from_numpy(records.column("n").to_numpy().astype(np.int64))
    return n, n.float() / 20
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [LOCAL, "--strategy ps --ps 2 --large-embedding 99"])
def test_the_next_day_is_trained_with_the_state_of_the_optimizer(
    tmp_path: Path, strategy: str
) -> None:
    """Two jobs of a day each give the model of one loop over both days."""
    place = Place(tmp_path)
    (place / "days.py").write_text(DAYS)
    days = [np.arange(20), np.arange(20)[::-1].copy()]
    for number, day in enumerate(days):
        pq.write_table(pa.table({"n": day}), place / f"day-{number}.parquet")
    run = f"run days.py {strategy} --batch-size 4 --no-shuffle"
    place(f"{run} --data day-0.parquet --checkpoint-dir A --output first")
    said = place(
        f"{run} --data day-1.parquet --load A --load-optimizer --checkpoint-dir B --output second"
    )
    assert "its values and optimizer state" in said.stdout
    found = load_file(place / "second" / "model.safetensors")

    contract: dict[str, Any] = {}
    exec(DAYS, contract)
    net = contract["model"]()
    optimizer = contract["optimizer"](net.parameters())
    for n in (torch.from_numpy(part.copy()) for day in days for part in day.reshape(-1, 4)):
        optimizer.zero_grad()
        contract["loss"](n.float() / 20, net(n)).backward()
        optimizer.step()
    for name, value in net.state_dict().items():
        assert torch.from_numpy(found[name]) == pytest.approx(value, abs=1e-5), name
    # Values alone give another model.
    place(f"{run} --data day-1.parquet --load A --output alone")
    alone = load_file(place / "alone" / "model.safetensors")
    assert np.abs(alone["rows.weight"] - found["rows.weight"]).max() > 1e-2
