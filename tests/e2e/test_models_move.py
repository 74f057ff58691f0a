"""A trained model goes from one job, strategy and shape of the cluster to another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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
