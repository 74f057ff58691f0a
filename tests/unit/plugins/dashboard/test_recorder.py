from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from torch_edl.config import JobConfig
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.dashboard import recorder
from torch_edl.plugins.dashboard.recorder import Recorder
from torch_edl.plugins.dashboard.samples import History, Samples

JOB = JobConfig(name="digits", model_file="model.py")


def _begun() -> Recorder:
    made = Recorder("")
    made.begin(JOB)
    return made


@pytest.fixture
def folder() -> Path:
    folder = JobFolder("digits").dir
    folder.mkdir(parents=True)
    return folder


def _lines(folder: Path, kind: str) -> list[dict[str, object]]:
    return [line for line in recorder.read(folder / "history.jsonl") if line["kind"] == kind]


def test_a_job_elsewhere_has_no_file(home: Path) -> None:
    made = _begun()
    made.scalars(1, 100.0, {"train/loss": 1.0})
    made.end("finished", "")
    assert not home.exists()


def test_the_folder_may_come_after_the_observer(home: Path) -> None:
    made = _begun()
    JobFolder("digits").dir.mkdir(parents=True)
    made.scalars(1, 100.0, {"train/loss": 1 / 3, "train/auc": math.nan})
    made.scalars(2, 100.5, {"train/loss": 0.5})  # within a second
    made.scalars(2, 100.6, {"eval/loss": 0.7})
    made.end("finished", "")
    lines = recorder.read(JobFolder("digits").history_file)
    assert [line["kind"] for line in lines] == ["begin", "scalars", "scalars", "scalars"]
    assert lines[3]["step"] == 2  # the last one comes at the end
    assert lines[1]["values"] == {"train/loss": 0.333333, "train/auc": None}
    assert lines[2]["values"] == {"eval/loss": 0.7}


def test_a_long_job_has_a_small_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a page that reads the file meanwhile sees the same samples as one that reads it later."""
    monkeypatch.setattr(recorder, "_MOST_SCALARS", 100)
    made, file, samples = _begun(), History(folder / "history.jsonl"), Samples()
    for step in range(1000):
        made.scalars(step, 100.0 + step, {"train/loss": 1.0})
        if step % 37 == 0:
            file.read(samples)
    made.end("finished", "")
    file.read(samples)
    steps = [line["step"] for line in _lines(folder, "scalars")]
    assert 50 <= len(steps) <= 100
    assert steps[0] == 0
    assert [sample.step for sample in samples.all] == steps
    assert samples.interval_s == 16


def test_a_continued_job_continues_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MOST_SCALARS", 10)
    for start in (0, 1000):
        made = _begun()
        for step in range(start, start + 12):
            made.scalars(step, 100.0 + step, {"train/loss": 1.0})
        made.end("left", "")
    begins = [line["interval_s"] for line in _lines(folder, "begin")]
    assert begins[-1] >= 2
    assert len(_lines(folder, "scalars")) <= 11


def test_damaged_lines_are_left_out(folder: Path) -> None:
    good = json.dumps({"kind": "scalars", "time": 1.0, "step": 1, "values": {}})
    (folder / "history.jsonl").write_text(f'{good}\n{{"kind": "sca\n[1]\n{good}\n')
    assert len(recorder.read(folder / "history.jsonl")) == 2
