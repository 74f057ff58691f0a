"""What a job that resumes has in common with its checkpoint: named where it differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import ClusterConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.data.cuts import CUTS
from torch_edl.data.passes import Pass
from torch_edl.data.resuming import (
    check_data,
    check_extent,
    check_options,
    continued,
    difference,
    identity,
    records_of,
)
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
        check_data(Path("/ck"), THEN, identity(CONFIG, shards))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 8}, "--batch-size 4, now it is --batch-size 8"),
        ({"records_per_task": 64}, "--records-per-task 128, now it is --records-per-task 64"),
        ({"shuffle": False}, "shuffle True"),
    ],
)
def test_other_settings_are_named(change, text):
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, **change))
    with pytest.raises(UsageError, match=text):
        check_options(config, Path("/ck"), THEN)


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
    check_data(Path("/ck"), then, identity(config, shards, "aa"))
    config = dataclasses.replace(config, data=dataclasses.replace(CONFIG.data, **change))
    with pytest.raises(UsageError, match=text):
        check_data(Path("/ck"), then, identity(config, shards, files))


def test_a_checkpoint_of_another_cut_of_the_data_is_refused():
    """Its offsets in tasks are offsets of other records."""
    then = {key: value for key, value in THEN.items() if key != "cuts"}
    with pytest.raises(UsageError, match=r"another version .* other tasks and minibatches; begin"):
        check_options(CONFIG, Path("/ck"), then)


def test_the_same_is_fine():
    check_options(CONFIG, Path("/ck"), THEN)
    check_data(Path("/ck"), THEN, identity(CONFIG, [Shard("a", 10), Shard("b", 20)]))


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
    saved = Manifest(job="j", strategy="ps", steps=64, watermarks=progress)
    if not text:
        check_extent(config, Path("/ck"), saved, space)
        return
    with pytest.raises(UsageError, match=text):
        check_extent(config, Path("/ck"), saved, space)


ALONE, SEVERAL = ClusterConfig(), ClusterConfig(max_workers=2)
SCRIPT = {"pass": 0, "records": 4}


def resumed(then, wanted, cluster, *, kind="train", data=THEN, **more):
    config = dataclasses.replace(
        CONFIG, kind=kind, train=TrainConfig(strategy=wanted), cluster=cluster
    )
    manifest = Manifest(job="j", strategy=then, steps=3, data=data, **more)
    return continued(config, Path("/ck"), manifest).train.strategy


@pytest.mark.parametrize(
    ("then", "wanted", "cluster", "strategy"),
    [
        ("ps", "auto", ALONE, "ps"),
        ("ps", "ps", SEVERAL, "ps"),
        ("allreduce", "auto", ALONE, "allreduce"),
        ("allreduce", "local", ALONE, "local"),
        ("local", "auto", ALONE, "local"),
        ("local", "auto", SEVERAL, "allreduce"),
        ("local", "allreduce", ALONE, "allreduce"),
    ],
)
def test_a_job_continues_with_the_strategy_of_its_checkpoint(then, wanted, cluster, strategy):
    assert resumed(then, wanted, cluster) == strategy


@pytest.mark.parametrize(
    ("then", "wanted", "fix"),
    [
        ("ps", "local", "--strategy ps, or begin the data afresh with its values: --load /ck, and"),
        ("ps", "allreduce", "--strategy ps, or"),
        ("allreduce", "ps", "--strategy allreduce without --ps, or"),
        ("local", "ps", "--strategy local without --ps, or"),
    ],
)
def test_servers_and_workers_do_not_continue_from_each_other(then, wanted, fix):
    with pytest.raises(UsageError, match=f"a checkpoint of the strategy {then}, .*; continue") as e:
        resumed(then, wanted, ALONE)
    assert f"; continue with {fix}" in str(e.value)


def test_a_script_continues_with_the_strategy_of_its_checkpoint():
    assert resumed("allreduce", "auto", ALONE, kind="script", data=SCRIPT) == "allreduce"
    assert resumed("ps", "auto", ALONE, kind="script", data=THEN | {"files": ""}) == "ps"


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("script", THEN, "a model file made it, and /m.py is a training script"),
        ("train", SCRIPT, "a training script made it, and /m.py is a model file"),
        ("train", THEN | {"files": ""}, "a training script made it"),
    ],
)
def test_a_script_and_a_model_file_do_not_continue_from_each_other(kind, data, text):
    with pytest.raises(UsageError, match=text):
        resumed("allreduce", "auto", ALONE, kind=kind, data=data)


@pytest.mark.parametrize(
    ("marks", "records"),
    [
        (Watermarks(0), 0),
        (Watermarks(0, {0: 12}), 12),
        (Watermarks(1, {1: 12, 2: 6, 3: 8}), 38),  # the last tasks of a and of an epoch are short
        (Watermarks(3, {3: 4, 4: 0}), 34),
        (Watermarks(9), 92),
    ],
)
def test_the_records_of_one_worker_are_a_position_of_a_ring(marks, records):
    data = THEN | {"shards": [["a", 30], ["b", 10]], "records_per_task": 12, "shuffle": False}
    manifest = Manifest(job="j", strategy="local", steps=3, watermarks=marks, data=data)
    assert records_of(Path("/ck"), manifest) == records


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"watermarks": Watermarks(0, {0: 4, 1: 4})}, "a task was put off after an error"),
        ({"files": {"shard-0-of-1.table-0.part-0.safetensors": 1}}, "one worker trained embedding"),
        ({"data": THEN | {"shards": [["kafka://h/t", 0]]}}, "a checkpoint of a stream"),
    ],
)
def test_what_a_ring_cannot_continue(more, text):
    with pytest.raises(UsageError, match=text):
        resumed("local", "auto", SEVERAL, **more)


def test_a_stream_and_data_with_an_end_do_not_continue_from_each_other():
    topic = THEN | {"shards": [["kafka://h/t", 0]]}
    with pytest.raises(UsageError, match=r"of a stream, .* an end; add --epochs stream, or"):
        resumed("ps", "auto", ALONE, data=topic, watermarks=Watermarks(3))
    stream, servers = DataConfig(batch_size=4, epochs=0), TrainConfig(strategy="ps")
    config = dataclasses.replace(CONFIG, data=stream, train=servers)
    assert continued(
        config, Path("/ck"), Manifest(job="j", strategy="ps", steps=3, data=topic)
    ).data.streams
    with pytest.raises(UsageError, match=r"on a stream; leave out --epochs stream, or begin"):
        continued(config, Path("/ck"), Manifest(job="j", strategy="ps", steps=3, data=THEN))


def test_options_and_extent_are_compared_before_anything_is_started():
    with pytest.raises(UsageError, match="--batch-size 8, now it is --batch-size 4"):
        resumed("ps", "auto", ALONE, data=THEN | {"batch_size": 8})
    with pytest.raises(UsageError, match=r"up to epoch 2.*\(--epochs 1\)"):
        resumed("ps", "auto", ALONE, watermarks=Watermarks(4))


def test_a_script_does_not_continue_in_the_order_of_another_version():
    now = Pass(records=100, batch_size=4, shuffle=True).identity
    assert difference(now, now) is None
    rules = "version {} of the rules that cut and shuffle data"
    for then, version in (({**now, "cuts": 1}, 1), ({**now, "cuts": 2}, 2)):
        assert difference(then, now) == (rules.format(version), rules.format(CUTS))
    del then["cuts"]  # as rings stored it before the third version
    assert difference(then, now) == (rules.format(2), rules.format(CUTS))
