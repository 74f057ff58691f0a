"""What fixes the meaning of a task id: named where it differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from master.state.data_identity import check_resume, identity
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.task_space import Shard
from torch_edl.errors import UsageError

CONFIG = JobConfig(name="j", model_file="/m.py", data=DataConfig(batch_size=4))
THEN = identity(CONFIG, [Shard("a", 10), Shard("b", 20)])


@pytest.mark.parametrize(
    ("shards", "text"),
    [
        ([Shard("a", 10)], "b was 20 records, now it is absent"),
        ([Shard("a", 11), Shard("b", 20)], "a was 10 records, now it is 11 records"),
        ([Shard("a", 10), Shard("b", 20), Shard("c", 1)], "c was absent, now it is 1 records"),
        ([Shard("b", 20), Shard("a", 10)], "another order"),
    ],
)
def test_other_data_is_named(shards, text):
    with pytest.raises(UsageError, match=text):
        check_resume(Path("/ck"), THEN, identity(CONFIG, shards))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 8}, "--batch-size 4, now it is 8"),
        ({"records_per_task": 64}, "--records-per-task 128, now it is 64"),
        ({"shuffle": False}, "shuffle True"),
    ],
)
def test_other_settings_are_named(change, text):
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, **change))
    with pytest.raises(UsageError, match=text):
        check_resume(Path("/ck"), THEN, identity(config, [Shard("a", 10), Shard("b", 20)]))


@pytest.mark.parametrize(
    ("change", "files", "text"),
    [
        ({"batch_size": 8}, "aa", "made with batch_size=4, now it is batch_size=8"),
        ({"shuffle": False}, "aa", "made with shuffle=True, now it is shuffle=False"),
        ({}, "bb", "made with data files aa .*, now it is data files bb"),
        ({}, "", "made with data files aa .*, now it is no data files"),
    ],
)
def test_a_script_is_told_of_what_it_gave_its_loader(change, files, text):
    shards = [Shard("dataset", 30)]
    config = dataclasses.replace(CONFIG, kind="script")
    then = identity(config, shards, "aa")
    check_resume(Path("/ck"), then, identity(config, shards, "aa"))
    config = dataclasses.replace(config, data=dataclasses.replace(CONFIG.data, **change))
    with pytest.raises(UsageError, match=text):
        check_resume(Path("/ck"), then, identity(config, shards, files))


def test_the_same_is_fine_also_after_json():
    check_resume(Path("/ck"), THEN, identity(CONFIG, [Shard("a", 10), Shard("b", 20)]))
