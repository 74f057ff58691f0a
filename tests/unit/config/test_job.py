"""The configuration: its options, its limits and its JSON, and the experiments of nodes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from torch_edl.cli.arguments.options import given
from torch_edl.cli.arguments.parser import build_parser
from torch_edl.config import Experiment, JobConfig
from torch_edl.config.environment import this_experiment
from torch_edl.config.job import PARTS
from torch_edl.config.option import JOB_KINDS, options_of
from torch_edl.config.parts import ClusterConfig
from torch_edl.config.training import TrainConfig
from torch_edl.errors import UsageError

FIELDS = [
    field
    for of in (JobConfig, *PARTS.values())
    for field in dataclasses.fields(of)
    if field.name not in PARTS
]
FIRST = Experiment(
    script="/a/train.py",
    args=("--lr", "0.005"),
    folder="/a",
    machine="m1/boot",
    rdzv_id="none",
    digest="d1",
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_each_kind_of_job_has_an_option_of_a_field_once(field: dataclasses.Field[object]) -> None:
    kinds = [kind for option in options_of(field) for kind in option.kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= set(JOB_KINDS)


def test_what_the_user_leaves_out_is_not_given() -> None:
    args = build_parser().parse_args(["run", "net.py", "--no-shuffle", "--ps", "2"])
    assert given(args, "train") == {
        "data": {"shuffle": False},
        "cluster": {"servers": 2},
        "train": {},
        "checkpoint": {},
        "durability": {},
    }


def test_a_limit_is_named_with_the_option() -> None:
    with pytest.raises(UsageError, match=r"^--keep-checkpoints 0: must be 1 or more$"):
        PARTS["checkpoint"](keep=0)
    with pytest.raises(UsageError, match=r"^kind fit: choose one of train, "):
        JobConfig(name="j", model_file="m.py", kind="fit")


def test_the_json_of_a_job_is_read_back() -> None:
    data = PARTS["data"](train=("a", "b"))
    config = JobConfig(name="j", model_file="m.py", data=data, experiment=FIRST)
    assert JobConfig.from_json(config.to_json()) == config
    with pytest.raises(UsageError, match=r"job configuration: .*epoch_count"):
        JobConfig.from_json(config.to_json().replace('"epochs"', '"epoch_count"'))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"durability": {"fsync": "always"}}, "--fsync: there is a journal with --durability"),
        ({"durability": {"journal_dir": "/d"}}, "--journal-dir: there is a journal with"),
        ({"durability": {"failover": "worker"}}, "--ps-failover worker: with --durability"),
        (
            {"durability": {"mode": "journal"}, "train": {"strategy": "allreduce"}},
            "--strategy allreduce has none",
        ),
        (
            {"cluster": {"max_workers": 2}, "train": {"strategy": "local"}},
            "--workers 2: the strategy local runs one worker",
        ),
        (
            {"data": {"train": ("kafka://h/t",), "epochs": 0}, "train": {"strategy": "allreduce"}},
            "--epochs stream: with --strategy allreduce.*use --stra",
        ),
    ],
)
def test_parts_that_contradict_each_other(changes: dict[str, dict[str, str]], text: str) -> None:
    fields = {name: changes.get(name, {}) for name in PARTS}
    with pytest.raises(UsageError, match=text):
        JobConfig.of({"name": "j", "model_file": "m.py", **fields})


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


def test_a_training_begins_with_updates_of_one_minibatch() -> None:
    job = JobConfig(
        name="t",
        model_file="m.py",
        cluster=ClusterConfig(max_workers=3),
        train=TrainConfig(local_steps=8),
    )
    sizes = [job.minibatches(version) for version in range(60)]
    assert sizes == [1] * 48 + [8] * 12
    assert [job.minibatches_before(version) for version in range(60)] == [
        sum(sizes[:version]) for version in range(60)
    ]
