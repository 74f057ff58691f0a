from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_edl.cli.tensorboard import Scalars
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

Make = Callable[..., pb.GetStatusResponse]


def read(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for file in directory.glob("events.out.tfevents.*"):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.HasField("tensor") else None
                found.setdefault(value.tag, []).append((event.step, number or value.simple_value))
    return found


def test_scalars_by_step(tmp_path: Path, make_status: Make) -> None:
    now = 0.0
    scalars = Scalars(str(tmp_path / "tb"), clock=lambda: now)
    for tick in range(11):  # two seconds
        now = tick / 5
        status = make_status(steps=tick + 1, loss=2.0**-tick)
        if tick >= 3:
            status.evaluations.add(steps=3, metrics={"auc": 0.5})
        if tick == 10:
            status.evaluations.add(steps=9, metrics={"auc": 0.75})
        scalars.update(status)
    scalars.close()
    got = read(tmp_path / "tb")
    assert got["train/loss"] == [(1, 1.0), (6, 2.0**-5), (11, 2.0**-10)]
    assert got["eval/auc"] == [(3, 0.5), (9, 0.75)]
    assert got["rate/records_per_s"] == [(1, 1500.0), (6, 1500.0), (11, 1500.0)]
    assert got["train/workers"][0] == (1, 1.0)


def test_a_script_has_what_it_logged_and_its_last_step(tmp_path: Path, make_status: Make) -> None:
    scalars = Scalars(str(tmp_path), clock=lambda: 0.0)
    for steps, accuracy in ((3, 0.5), (5, 0.75), (8, 1.0)):
        logged = {"accuracy": accuracy, "lr": 0.25}
        scalars.update(make_status(kind="script", steps=steps, loss=float("nan"), logged=logged))
    scalars.close()
    got = read(tmp_path)
    assert got["train/accuracy"] == [(3, 0.5), (8, 1.0)]
    assert got["train/lr"] == [(3, 0.25), (8, 0.25)]
    assert "train/loss" not in got


def test_without_new_steps_nothing_is_written(tmp_path: Path, make_status: Make) -> None:
    now = 0.0
    scalars = Scalars(str(tmp_path), clock=lambda: now)
    for tick in range(5):
        now = float(tick)
        scalars.update(make_status(steps=7))
    scalars.close()
    assert [step for step, _ in read(tmp_path)["train/loss"]] == [7]


def test_absent_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(UsageError, match=r"pip install 'torch-edl\[tensorboard\]'"):
        Scalars(str(tmp_path))


def test_it_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from torch_edl.cli.tensorboard import Scalars;"
        "from torch_edl.wire.master_pb2 import GetStatusResponse;"
        f"s = Scalars({str(tmp_path)!r}); s.update(GetStatusResponse(steps=1)); s.close();"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
