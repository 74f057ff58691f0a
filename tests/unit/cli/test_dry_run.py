from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.cli.__main__ import main

MODEL = """
import sys, torch
from torch import nn
WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 4
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(1000, WIDTH)
        self.out = nn.Linear(WIDTH, 1)
    def forward(self, x): return self.out(self.items(x))[:, 0]
def model(): return Net()
def loss(labels, predictions): return ((predictions - labels) ** 2).mean()
def optimizer(params): return torch.optim.Adagrad(params, lr=0.1)
def eval_metrics_fn(): return {"error": nn.L1Loss()}
def feed(records, mode, metadata):
    column = lambda name: torch.tensor(records[name].to_numpy())
    return column("x"), column("y")
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def rows(text: str) -> dict[str, str]:
    lines = [line.strip().split("  ", 1) for line in text.splitlines() if line.strip()]
    return {line[0]: line[1].strip() for line in lines if len(line) == 2}


def test_the_plan(
    net: Path,
    csv_file: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # lines in a file are not wrapped
    words = f"run {net} --data {csv_file} --dry-run --epochs 2 --records-per-task 2 --ps 2"
    assert main(words.split()) == 0
    plan = rows(capsys.readouterr().out)
    assert (
        plan["strategy"]
        == "ps: asked for with --strategy ps, --ps, --durability or --epochs stream"
    )
    assert plan["servers"] == "2"
    assert plan["data"] == "3 records in 1 file"
    assert plan["epochs"] == "2 of 2 tasks"
    assert plan["model"] == "4,005 dense parameters, Adagrad"
    assert plan["embedding"] == "items: 1,000 x 4"
    assert plan["loss"] == "loss(labels, predictions): it takes (labels, predictions)"
    assert plan["first batch"].startswith("3 records, loss ")
    assert plan["metric error"] == "L1Loss(predictions, labels): the order of torch"
    assert not home.exists()  # nothing was started
    assert main([*words.split(), "--strategy", "local"]) == 0
    plan = rows(capsys.readouterr().out)
    assert plan["strategy"] == "local: asked for with --strategy local"
    assert plan["servers"] == "none; --ps 2 has an effect with --strategy ps only"


def test_the_reason_and_the_models_arguments(
    net: Path, csv_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run {net} --data {csv_file} --dry-run --workers 2:4 --large-embedding 1000 -- 8"
    assert main(words.split()) == 0
    plan = rows(capsys.readouterr().out)
    assert plan["strategy"] == "ps: embedding items of 1,000 x 8 is large"
    assert plan["workers"] == "2 to 4"
    assert plan["servers"] == "1"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("torch.optim.Adagrad(params, lr=0.1)", "torch.optim.LBFGS(params)"), "LBFGS"),
        (("return Net()", "return 3"), "model returned int"),
        (("return Net()", "return Net().nope"), "AttributeError"),
        (("def loss(labels, predictions)", "def loss(labels)"), "does not take 2 arguments"),
        (('return column("x")', "return 1 / 0"), "feed raised ZeroDivisionError"),
        (("predictions - labels", "predictions - labels[:2]"), "loss raised RuntimeError: The siz"),
        (("self.items(x)", "self.nope(x)"), "no attribute 'nope'"),
    ],
)
def test_what_breaks_the_contract_is_one_error(
    net: Path,
    csv_file: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    expected: str,
) -> None:
    net.write_text(MODEL.replace(*change))
    words = f"run {net} --data {csv_file} --dry-run --strategy ps"
    assert main(words.split()) == 2
    got = capsys.readouterr()
    assert expected in got.err
    assert got.err.count("error: ") == 1
    assert got.out == ""


def test_data_without_records_is_refused(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("x,y\n")
    assert main(["run", str(net), "--data", str(empty), "--dry-run"]) == 2
    assert "empty.csv" in capsys.readouterr().err
