"""When checkpoints are due, and what may be resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from master.state.saves import Saved, Saves, check_resume, identity
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, DataConfig, JobConfig
from torch_edl.data.task_space import Shard
from torch_edl.errors import UsageError


def saved(steps: int) -> Saved:
    return Saved(
        Path(f"/ck/{steps}"),
        Manifest(job="j", strategy="ps", steps=steps, shards=1),
    )


def saves(newest: Saved | None = None, **config) -> Saves:
    return Saves(CheckpointConfig(**config), temporary=Path("/tmp/x"), newest=newest)


def due(s: Saves, steps: int, *, settled: bool = False, now: float = 0.0) -> bool:
    return s.due(steps, settled=settled, now=now)


def test_each_crossing_once_one_at_a_time():
    s = saves(dir="/ck", every=10)
    assert not due(s, 9)
    assert due(s, 13)
    assert not due(s, 25)
    s.done(saved(13))
    assert due(s, 25)
    s.done(saved(25))
    assert not due(s, 29)


def test_after_a_resume_the_next_multiple():
    s = saves(saved(25), dir="/ck", every=10, resume=True)
    assert not due(s, 29)
    assert due(s, 30)


def test_the_last_one_only_where_it_is_wanted():
    assert saves().complete
    assert not due(saves(), 5, settled=True)
    s = saves(output="/out")
    assert s.root == Path("/tmp/x")
    assert not s.complete
    assert due(s, 5, settled=True)
    s.done(saved(5))
    assert s.complete
    assert not due(s, 5, settled=True)


def test_a_periodic_one_at_the_end_is_not_the_last():
    s = saves(dir="/ck", every=5)
    assert due(s, 5)
    s.done(saved(5))
    assert not s.complete
    assert due(s, 5, settled=True)


def test_one_that_failed_waits_and_then_comes_at_once():
    s = saves(dir="/ck", every=10)
    assert due(s, 10, now=0.0)
    assert not s.failed(1.0)
    assert not due(s, 11, now=5.9)
    assert due(s, 11, now=6.0)
    s.done(saved(11))
    assert not due(s, 19, now=7.0)


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
