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
    from torch_edl.data.sources import expand, open_source

    wanted = {
        "train": {"train": config.data.train, "eval": config.data.eval},
        "evaluate": {"eval": config.data.eval},
        "predict": {"predict": config.data.predict},
    }[config.kind]
    shards: dict[str, Sequence[Shard]] = {}
    damaged, error = 0, ""
    try:
        for key, paths in wanted.items():
            if paths:
                format, skip = config.data.format, config.data.skip_damaged
                files = expand(paths)
                sources = [open_source(path, format=format, skip_damaged=skip) for path in files]
                shards[key] = [Shard.of(source) for source in sources]
                damaged += sum(source.damaged for source in sources)
    except (EdlError, OSError) as raised:
        error = str(raised)
    except Exception as raised:
        log.exception("the data cannot be scanned")
        error = f"the data cannot be scanned: {type(raised).__name__}: {raised}"
    return DataScanned(shards, damaged, error)
