"""A trained model goes from one job, strategy and shape of the cluster to another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.waiting import HANG_S

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
PS = ["--strategy", "ps", "--ps", "2", "--large-embedding", "10"]
LOCAL = ["--strategy", "local"]


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "count.py").write_text(MODEL)
        pq.write_table(pa.table({"n": np.arange(40)}), folder / "data.parquet")

    def __call__(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "torch_edl.cli", *args],
            cwd=self.folder, capture_output=True, text=True, timeout=HANG_S,
            env={**os.environ, "TORCH_EDL_HOME": str(self.folder / "home")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def train(self, *flags: str, epochs: int = 1, output: str) -> None:
        self(
            "run",
            "count.py",
            "--data",
            "data.parquet",
            "--batch-size",
            "4",
            "--records-per-task",
            "8",
            "--epochs",
            str(epochs),
            "--output",
            output,
            *flags,
        )

    def counts(self, output: str) -> tuple[float, set[float]]:
        """The dense count, and the distinct counts of rows."""
        dense = load_file(self.folder / output / "model.safetensors")
        swapped = self.folder / output / "embeddings" / "rows.safetensors"
        rows = load_file(swapped)["vectors"] if swapped.exists() else dense["rows.weight"]
        assert rows.shape == (40, 2)
        return float(dense["total"][0]), set(rows.reshape(-1).tolist())

    def seen(self, source: str, *flags: str) -> float:
        """What `evaluate` says of one batch of one record each: 1 per epoch and weight."""
        out = self("evaluate", "count.py", "--from", source, "--data", "data.parquet", "--json",
                   "--batch-size", "1", *flags)  # fmt: skip
        found: dict[str, Any] = json.loads(out)
        return float(found.get("metrics", found)["seen"])


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(PS, id="ps"), pytest.param(LOCAL, id="local", marks=pytest.mark.slow)],
)
def test_a_job_begins_with_the_model_of_another(shell: Shell, strategy: list[str]) -> None:
    """From its output and from its checkpoint: the values, and none of its watermarks."""
    shell.train(*strategy, "--checkpoint-dir", "A", epochs=2, output="first")
    assert shell.counts("first") == (80, {2})
    for number, source in enumerate(["first", "A"]):
        shell.train(*strategy, "--load", source, output=f"next-{number}")
        assert shell.counts(f"next-{number}") == (120, {3})


@pytest.mark.slow  # four jobs
def test_a_model_moves_between_strategies(shell: Shell) -> None:
    shell.train(*PS, "--checkpoint-dir", "P", output="on-servers")
    shell.train(*LOCAL, "--checkpoint-dir", "L", output="here")
    for source in ("on-servers", "P"):
        assert shell.seen(source) == 40 + 2 * 1  # total is 40, a row two ones; one worker: local
        shell.train(*LOCAL, "--load", source, output=f"from-{source}")
        assert shell.counts(f"from-{source}") == (80, {2})
    for source in ("here", "L"):
        assert shell.seen(source, *PS) == 40 + 2 * 1
        shell.train(*PS, "--load", source, output=f"from-{source}")
        assert shell.counts(f"from-{source}") == (80, {2})
