"""Counts the records of the data of a job, while the first worker starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from master.state.actions import DataScanned
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard
from torch_edl.errors import EdlError

log = logging.getLogger(__name__)


def scan(config: JobConfig) -> DataScanned:
    """Opens every file of the data; an error is part of the result."""
    # Imported when needed, in a thread of its own: it may bring pyarrow.
    from torch_edl.data.sources import expand, parts

    wanted = {
        "train": {"train": config.data.train, "eval": config.data.eval},
        "evaluate": {"eval": config.data.eval},
        "predict": {"predict": config.data.predict},
    }[config.kind]
    shards: dict[str, Sequence[Shard]] = {}
    damaged, error = 0, ""
    try:
        for key, paths in wanted.items():
            if key == "train" and config.data.streams:
                _check_streams(paths)
            elif paths:
                files = paths if config.data.expanded else expand(paths)
                counted = _counted(parts(files), config)
                shards[key] = [shard for shard, _ in counted]
                damaged += sum(lost for _, lost in counted)
    except (EdlError, OSError) as raised:
        error = str(raised)
    except Exception as raised:
        log.exception("the data cannot be scanned")
        error = f"the data cannot be scanned: {type(raised).__name__}: {raised}"
    return DataScanned(shards, damaged, error)


def _check_streams(topics: Sequence[str]) -> None:
    """Raises DataError unless all topics are there."""
    from torch_edl.data.sources.streams.kafka import stream_offsets

    stream_offsets(topics)


def _counted(files: Sequence[str], config: JobConfig) -> list[tuple[Shard, int]]:
    """The shard of each file, and what was left out of it."""
    from torch_edl.data.sources import of_each, open_source

    def counted(path: str) -> tuple[Shard, int]:
        # The source is let go: of ten thousand files, footers alone are gigabytes.
        data = config.data
        source = open_source(path, format=data.format, skip_damaged=data.skip_damaged)
        return Shard.of(source), source.damaged

    return of_each(files, counted)
