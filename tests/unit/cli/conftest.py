from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torch_edl.wire import master_pb2 as pb

MODEL = """
def model(): ...
def loss(labels, predictions): ...
def optimizer(params): ...
def feed(records, mode, metadata): ...
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job folder of the test's own."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A model file that holds the names of the contract."""
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    """Three records."""
    path = tmp_path / "train.csv"
    path.write_text("x,y\n1,2\n3,4\n5,6\n")
    return path


@pytest.fixture
def make_status() -> Callable[..., pb.GetStatusResponse]:
    """A status in the middle of a job; keywords replace fields."""

    def make(**fields: object) -> pb.GetStatusResponse:
        status = pb.GetStatusResponse(
            job="net-abc",
            kind="train",
            strategy="ps",
            reason="up to 2 workers share one model",
            state="running",
            epoch=1,
            epochs=3,
            records={"done": 12_345, "total": 30_000},
            tasks={"todo": 8, "doing": 2, "done": 7},
            steps=193,
            loss=0.34567,
            rates={"records_per_s": 1500.0, "steps_per_s": 23.4},
            workers_wanted=2,
            wall_s=8.2,
            processes=[
                pb.ProcessStatus(role="master", id=0, pid=10, state="running", address="h:1"),
                pb.ProcessStatus(role="ps", id=0, pid=11, state="running", address="h:2"),
                pb.ProcessStatus(role="worker", id=0, pid=12, state="exited", exit="signal 9"),
                pb.ProcessStatus(role="worker", id=1, pid=13, state="running"),
                pb.ProcessStatus(role="worker", id=2, pid=14, state="starting"),
            ],
        )
        for name, value in fields.items():
            if isinstance(value, list):
                status.ClearField(name)
                getattr(status, name).extend(value)
            elif isinstance(value, dict) and name in ("records", "tasks"):
                for part, number in value.items():
                    setattr(getattr(status, name), part, number)
            elif isinstance(value, dict):
                status.ClearField(name)
                getattr(status, name).update(value)
            else:
                setattr(status, name, value)
        return status

    return make
