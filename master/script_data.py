"""What a training script on parameter servers goes through, as its workers tell. Pure."""

from __future__ import annotations

import dataclasses

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

_WORDS = {
    "records": "{:,} records",
    "epochs": "epochs={:,}",
    "batch_size": "batch_size={:,}",
    "records_per_task": "{:,} records a task",
    "shuffle": "shuffle={}",
    "seed": "seed={}",
}


def with_data(config: JobConfig, told: pb.ScriptData) -> JobConfig:
    """The configuration of the job, with the data of its loader.

    Raises:
        UsageError: a number that cannot be.
    """
    if min(told.records, told.records_per_task) < 1:
        raise UsageError(f"job.loader: {told.records:,} records; at least one is needed")
    data = dataclasses.replace(
        config.data,
        batch_size=told.batch_size,
        records_per_task=told.records_per_task,
        epochs=told.epochs,
        shuffle=told.shuffle,
    )
    return dataclasses.replace(
        config, data=data, train=dataclasses.replace(config.train, seed=told.seed)
    )


def check_same(first: pb.ScriptData, told: pb.ScriptData) -> None:
    """Raises UsageError, naming the first difference, unless two workers tell the same."""
    for name, words in _WORDS.items():
        mine, others = getattr(told, name), getattr(first, name)
        if mine != others:
            raise UsageError(
                f"job.loader: this process has {words.format(mine)}, another had "
                f"{words.format(others).removesuffix(' records')}; "
                "all processes must go through the same data"
            )
