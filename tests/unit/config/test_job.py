"""Every field of the configuration has an option of the command line, or says what sets it."""

from __future__ import annotations

import dataclasses

import pytest

from torch_edl.cli.options import given
from torch_edl.cli.parser import build_parser
from torch_edl.config import JobConfig
from torch_edl.config.job import PARTS
from torch_edl.config.option import JOB_KINDS, options_of
from torch_edl.errors import UsageError

FIELDS = [
    field
    for of in (JobConfig, *PARTS.values())
    for field in dataclasses.fields(of)
    if field.name not in PARTS
]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_has_options_or_says_what_sets_it(field: dataclasses.Field[object]) -> None:
    assert bool(options_of(field)) != bool(field.metadata["set_by"])
    kinds = [kind for option in options_of(field) for kind in option.kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= set(JOB_KINDS)


def test_no_two_options_of_a_kind_share_a_flag() -> None:
    for kind in JOB_KINDS:
        flags = [
            flag
            for field in FIELDS
            for option in options_of(field)
            if kind in option.kinds
            for flag in option.flags
        ]
        assert len(flags) == len(set(flags))


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
    config = JobConfig(name="j", model_file="m.py", data=PARTS["data"](train=("a", "b")))
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
    ],
)
def test_durability_that_cannot_be(changes: dict[str, dict[str, str]], text: str) -> None:
    fields = {name: changes.get(name, {}) for name in PARTS}
    with pytest.raises(UsageError, match=text):
        JobConfig.of({"name": "j", "model_file": "m.py", **fields})


def test_one_worker_is_all_that_local_has() -> None:
    parts = {"cluster": {"max_workers": 2}, "train": {"strategy": "local"}}
    fields = {name: parts.get(name, {}) for name in PARTS}
    with pytest.raises(UsageError, match="--workers 2: the strategy local runs one worker"):
        JobConfig.of({"name": "j", "model_file": "m.py", **fields})


def test_a_ring_takes_no_stream() -> None:
    parts = {"data": {"train": ("kafka://h/t",), "epochs": 0}, "train": {"strategy": "allreduce"}}
    fields = {name: parts.get(name, {}) for name in PARTS}
    with pytest.raises(UsageError, match=r"--epochs stream: with --strategy allreduce.*use --stra"):
        JobConfig.of({"name": "j", "model_file": "m.py", **fields})
