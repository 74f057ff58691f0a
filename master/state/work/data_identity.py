"""The data that workers of a script report: stored in the job's configuration, and compared between
workers. Pure."""

from __future__ import annotations

import dataclasses

from torch_edl.config import JobConfig
from torch_edl.data.task_space import SEED_SAMPLES, difference
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

_PARTS = ("records", "epochs", "batch_size", "records_per_task", "shuffle", "seed", "files")
MOST_RECORDS = 1 << 53


def nothing_left(config: JobConfig) -> str:
    """Return the warning for a checkpoint that already holds all the training."""
    more = "epochs=" if config.kind == "script" else "--epochs"
    if config.train.max_steps:
        more = "--epochs or --max-steps"
    return (
        "nothing is left to train: the checkpoint is of the end of the job; raise "
        f"{more} to continue from there"
    )


def with_data(config: JobConfig, script: pb.ScriptData) -> JobConfig:
    """Return the job's configuration with the data of its loader.

    Raises:
        UsageError: a number is out of range.
    """
    if min(script.records, script.records_per_task) < 1:
        raise UsageError(f"job.loader: {script.records:,} records; at least one is needed")
    if script.records * max(script.epochs, 1) > MOST_RECORDS:
        raise UsageError(
            f"job.loader: {script.records:,} records in {script.epochs:,} epochs; at most "
            f"{MOST_RECORDS:,} are counted"
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
    """Raise UsageError with the first difference between the data of two workers."""
    parts = [{name: getattr(one, name) for name in _PARTS} for one in (first, second)]
    differs = difference(*parts)
    if differs is not None:
        others, mine = differs
        raise UsageError(
            f"job.loader: this process has {mine}, another had {others.removesuffix(' records')}; "
            "all processes must go through the same data"
        )
    if first.samples != second.samples:
        raise UsageError(
            "job.loader: the dataset of this process stores other samples than that of another "
            f"process; {SEED_SAMPLES}"
        )
