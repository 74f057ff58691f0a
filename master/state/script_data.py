"""What a training script on parameter servers goes through, as its workers tell. Pure."""

from __future__ import annotations

import dataclasses

from torch_edl.config import JobConfig
from torch_edl.data.identity import difference
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

_PARTS = ("records", "epochs", "batch_size", "records_per_task", "shuffle", "seed", "files")

_MOST_RECORDS = 1 << 53


def with_data(config: JobConfig, told: pb.ScriptData) -> JobConfig:
    """The configuration of the job, with the data of its loader.

    Raises:
        UsageError: a number that cannot be.
    """
    if min(told.records, told.records_per_task) < 1:
        raise UsageError(f"job.loader: {told.records:,} records; at least one is needed")
    if told.records * max(told.epochs, 1) > _MOST_RECORDS:
        raise UsageError(
            f"job.loader: {told.records:,} records in {told.epochs:,} epochs; at most "
            f"{_MOST_RECORDS:,} are counted"
        )
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
    parts = [{name: getattr(one, name) for name in _PARTS} for one in (first, told)]
    differs = difference(*parts)
    if differs is not None:
        others, mine = differs
        raise UsageError(
            f"job.loader: this process has {mine}, another had {others.removesuffix(' records')}; "
            "all processes must go through the same data"
        )
