from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import observers
from torch_edl.plugins.tensorboard.observer import TensorBoard


def read(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for file in directory.glob("events.out.tfevents.*"):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.HasField("tensor") else None
                found.setdefault(value.tag, []).append((event.step, number or value.simple_value))
    return found


def test_scalars_by_step(tmp_path: Path) -> None:
    written = TensorBoard(str(tmp_path / "tb"))
    written.scalars(1, 100.0, {"train/loss": 0.5, "rate/records_per_s": 1500.0})
    written.scalars(3, 102.0, {"eval/auc": 0.75})
    written.end("finished", "")
    assert read(tmp_path / "tb") == {
        "train/loss": [(1, 0.5)],
        "rate/records_per_s": [(1, 1500.0)],
        "eval/auc": [(3, 0.75)],
    }


def test_the_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = JobConfig(name="j", model_file="/m.py", observe=("tensorboard=tb",))
    assert observers.checked(job).observe == (f"tensorboard={tmp_path}/tb",)


@pytest.mark.parametrize("value", ["tensorboard", "tensorboard=taken"])
def test_a_folder_that_cannot_be(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    with pytest.raises(UsageError, match=r"^--observe tensorboard\b.*folder"):
        observers.checked(JobConfig(name="j", model_file="/m.py", observe=(value,)))


def test_absent_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_edl.plugins.tensorboard.observer")
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    job = JobConfig(name="j", model_file="/m.py", tensorboard=str(tmp_path))
    with pytest.raises(UsageError, match=r"pip install 'torch-edl\[tensorboard\]'"):
        observers.checked(job)


def test_it_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from torch_edl.plugins.tensorboard.observer import TensorBoard;"
        f"s = TensorBoard({str(tmp_path)!r}); s.scalars(1, 0.0, {{'a': 1.0}}); s.end('left', '');"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
