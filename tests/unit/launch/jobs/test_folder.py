"""The parent of all folders of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.cli.__main__ import main

MODEL = """
import torch
def model(): return torch.nn.Linear(1, 1)
def loss(labels, predictions): return (predictions - labels).sum()
def optimizer(params): return torch.optim.SGD(params, lr=0.1)
def feed(records, mode, metadata): ...
"""


@pytest.mark.parametrize("flags", [[], ["--detach"]])
def test_a_home_that_cannot_be_written_is_named_with_the_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    """In /proc, not even root may make a folder."""
    model, data = tmp_path / "net.py", tmp_path / "x.csv"
    model.write_text(MODEL)
    data.write_text("x\n1\n")
    monkeypatch.delenv("TORCH_EDL_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc")
    assert main(["run", str(model), "--data", str(data), *flags]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "/proc/.local/state/torch-edl/jobs, for the folders of jobs: " in said
    assert "with TORCH_EDL_HOME" in said
