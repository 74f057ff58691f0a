"""What fixes the meaning of a task id, and of a position in the data of a script: compared where a
job continues from a checkpoint, and between the workers of a script. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from master.state.actions import Saved
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, TaskSpace, difference
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

_PARTS = ("records", "epochs", "batch_size", "records_per_task", "shuffle", "seed", "files")
_MOST_RECORDS = 1 << 53


def check_strategy(config: JobConfig, saved: Saved, strategy: str) -> None:
    """Raises UsageError unless a job of the strategy can continue from the checkpoint.

    A ring continues from a checkpoint whose tasks are the first ones, one after another.
    """
    then = saved.manifest.strategy
    if config.kind == "script" and then != strategy:
        raise UsageError(
            f"--resume {saved.path}: a checkpoint of the strategy {then}; continue with "
            f"--strategy {then}, or begin with its values: --load"
        )
    if config.kind == "script" or strategy != "allreduce":
        return
    progress = saved.progress
    started = {id for id in progress.offsets if id >= progress.retired_before}
    if started - {progress.retired_before}:
        raise UsageError(
            f"--resume {saved.path}: it was made with tasks in the hands of several workers, and "
            "--strategy allreduce takes the records in one order; use --strategy ps, or --load "
            "it to begin the data afresh"
        )


def nothing_left(config: JobConfig) -> str:
    """What to say where the checkpoint to continue from holds all the training."""
    more = "epochs=" if config.kind == "script" else "--epochs"
    if config.train.max_steps:
        more = "--epochs or --max-steps"
    return (
        "nothing is left to train: the checkpoint is of the end of the job; raise "
        f"{more} to continue from there"
    )


def check_extent(config: JobConfig, saved: Saved, space: TaskSpace) -> None:
    """Raises UsageError if the checkpoint holds training that is not of this job any more."""
    progress = saved.progress
    last = max([progress.retired_before - 1, *progress.offsets])
    if last < space.total and (
        space.cut is None or progress.offset(space.cut.id) <= space.cut.records
    ):
        return
    if last < space.tasks_per_epoch * space.epochs:
        limit = f"--max-steps {config.train.max_steps}"
    else:
        limit = f"{'epochs=' if config.kind == 'script' else '--epochs '}{space.epochs}"
    epoch = last // max(1, space.tasks_per_epoch) + 1
    raise UsageError(
        f"--resume {saved.path}: it has {saved.manifest.steps:,} steps, up to epoch {epoch}, and "
        f"the job is over after {space.total_steps:,} ({limit}); raise that, or --load it to begin "
        "the data afresh"
    )


def identity(config: JobConfig, shards: Sequence[Shard], files: str = "") -> dict[str, Any]:
    """What fixes the meaning of a task id: kept in manifests, compared on resume.

    Args:
        files: of a script, whose one shard is its dataset: digest of its data files.
    """
    made = {
        "shards": [[s.name, s.records] for s in shards],
        "records_per_task": config.records_per_task,
        "batch_size": config.data.batch_size,
        "local_steps": config.train.local_steps,
        "seed": config.train.seed,
        "shuffle": config.data.shuffle,
    }
    return made | {"files": files} if config.kind == "script" else made


# What others depend on comes first: it is the one to name.
_OPTIONS = {
    "batch_size": "--batch-size {}",
    "local_steps": "--local-steps {}",
    "records_per_task": "--records-per-task {}",
    "seed": "--seed {}",
    "shuffle": "shuffle {}",
}


def check_resume(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError, naming the first difference, unless task ids still mean the same."""
    if "files" in now:  # of a script, which gave them to its loader
        differs = difference(then, now)
    else:
        options = (key for key in _OPTIONS if then.get(key) != now[key])
        differs = next(((_OPTIONS[key].format(then.get(key)), now[key]) for key in options), None)
    if differs is not None:
        raise UsageError(
            f"--resume {path}: it was made with {differs[0]}, now it is {differs[1]}; use the "
            "same, or start afresh with another --checkpoint-dir"
        )
    before = dict(map(tuple, then.get("shards", [])))
    after = dict(map(tuple, now["shards"]))
    if list(before.items()) == list(after.items()):
        return
    for name in [*before, *after]:
        if before.get(name) != after.get(name):
            had = f"{before[name]} records" if name in before else "absent"
            has = f"{after[name]} records" if name in after else "absent"
            what = f"{name} was {had}, now it is {has}"
            break
    else:
        what = "the same files come in another order"
    raise UsageError(
        f"--resume {path}: the training data is not what it was made with: {what}; "
        "use the same data, or --load it to train on other data"
    )


def with_data(config: JobConfig, script: pb.ScriptData) -> JobConfig:
    """The configuration of the job, with the data of its loader.

    Raises:
        UsageError: a number is out of range.
    """
    if min(script.records, script.records_per_task) < 1:
        raise UsageError(f"job.loader: {script.records:,} records; at least one is needed")
    if script.records * max(script.epochs, 1) > _MOST_RECORDS:
        raise UsageError(
            f"job.loader: {script.records:,} records in {script.epochs:,} epochs; at most "
            f"{_MOST_RECORDS:,} are counted"
        )
    data = dataclasses.replace(
        config.data,
        batch_size=script.batch_size,
        records_per_task=script.records_per_task,
        epochs=script.epochs,
        shuffle=script.shuffle,
    )
    return dataclasses.replace(
        config, data=data, train=dataclasses.replace(config.train, seed=script.seed)
    )


def check_same(first: pb.ScriptData, second: pb.ScriptData) -> None:
    """Raises UsageError with the first difference, unless two workers report the same data."""
    parts = [{name: getattr(one, name) for name in _PARTS} for one in (first, second)]
    differs = difference(*parts)
    if differs is not None:
        others, mine = differs
        raise UsageError(
            f"job.loader: this process has {mine}, another had {others.removesuffix(' records')}; "
            "all processes must go through the same data"
        )
