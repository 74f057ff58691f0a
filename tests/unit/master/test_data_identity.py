"""What fixes the meaning of a task id: named where it differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from master.state.actions import Saved
from master.state.data_identity import check_extent, check_resume, identity
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import DataConfig, JobConfig, TrainConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks

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


@pytest.mark.parametrize(
    ("limits", "kind", "progress", "text"),
    [
        ({"epochs": 3}, "train", Watermarks(9), ""),
        ({"epochs": 3}, "train", Watermarks(8, {8: 4}), ""),
        ({"epochs": 2}, "train", Watermarks(7), r"64 steps.* epoch 3.* after 16 \(--epochs 2\)"),
        ({"epochs": 2}, "train", Watermarks(2, {2: 4, 6: 4}), r"up to epoch 3.* \(--epochs 2\)"),
        ({"epochs": 2}, "script", Watermarks(7), r"\(epochs=2\); raise that, or --load"),
        ({"max_steps": 4}, "train", Watermarks(1, {1: 4}), ""),
        ({"max_steps": 4}, "train", Watermarks(1, {1: 8}), r"epoch 1.* 4 \(--max-steps 4\)"),
        ({"max_steps": 4}, "train", Watermarks(2), r"\(--max-steps 4\)"),
    ],
)
def test_a_checkpoint_of_a_longer_job_is_refused(limits, kind, progress, text):
    shards = [Shard("a", 30)]
    epochs, steps = limits.get("epochs", 1), limits.get("max_steps", 0)
    config = JobConfig(name="j", model_file="/m.py", kind=kind, train=TrainConfig(max_steps=steps))
    space = TaskSpace(shards, 12, epochs=epochs, batch_size=4, max_steps=steps)
    saved = Saved(Path("/ck"), Manifest(job="j", strategy="ps", steps=64, watermarks=progress))
    if not text:
        check_extent(config, saved, space)
        return
    with pytest.raises(UsageError, match=text):
        check_extent(config, saved, space)
