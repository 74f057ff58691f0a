"""Which agents may share a job."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from torch_edl.config import Experiment, JobConfig
from torch_edl.config.environment import this_experiment

FIRST = Experiment(
    script="/a/train.py",
    args=("--lr", "0.005"),
    folder="/a",
    machine="m1/boot",
    rdzv_id="none",
    digest="d1",
)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({}, ""),
        ({"args": ("--lr", "0.5")}, "arguments --lr 0.005 there, --lr 0.5 here"),
        ({"args": ()}, "arguments --lr 0.005 there, (none) here"),
        ({"script": "/b/train.py"}, "script /a/train.py there, /b/train.py here"),
        ({"folder": "/b"}, "working folder /a there, /b here"),
        ({"rdzv_id": "other"}, "--rdzv-id none there, other here"),
        ({"digest": "d2"}, "the text of /a/train.py has changed since the start of the job"),
        # Another machine may have it elsewhere; its program is the same or is not.
        ({"machine": "m2/boot", "script": "/b/train.py", "folder": "/b"}, ""),
        ({"machine": "m2/boot", "script": "/a/eval.py"}, "script train.py there, eval.py here"),
        (
            {"machine": "m2/boot", "digest": "d2"},
            "the text of train.py has changed since the start of the job",
        ),
    ],
)
def test_what_differs_is_named_with_both_sides(change: dict, difference: str) -> None:
    assert FIRST.difference(dataclasses.replace(FIRST, **change)) == difference


def test_it_travels_with_the_configuration_of_the_job() -> None:
    config = JobConfig(name="j", kind="script", model_file="/a/train.py", experiment=FIRST)
    assert JobConfig.from_json(config.to_json()) == config


def test_the_one_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    made = this_experiment("pkg.train", ["-x"], rdzv_id="none", file=file)
    assert (made.script, made.args, made.folder) == ("pkg.train", ("-x",), os.path.realpath("."))
    file.write_text("1\n")
    assert "the text of" in made.difference(
        this_experiment("pkg.train", ["-x"], rdzv_id="none", file=file)
    )
    assert this_experiment("tool", [], rdzv_id="none", file=None).digest == ""
