"""Configuration of the records of a job and of their division into tasks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch_edl.config.option import TRAIN, Checked, Option, declare, option
from torch_edl.errors import UsageError

_train_option = functools.partial(option, kinds=TRAIN)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Sources of the records, and their division into tasks."""

    train: tuple[str, ...] = _train_option(
        (), "--data PATH", "files, folders or globs to train on; repeatable"
    )
    eval: tuple[str, ...] = _train_option(
        (),
        "--eval-data PATH",
        "files, folders or globs to evaluate on",
        Option("--data PATH", "files, folders or globs to evaluate on", kinds=("evaluate",)),
    )
    predict: tuple[str, ...] = option(
        (), "--data PATH", "files, folders or globs to predict for", kinds=("predict",)
    )
    keep: str = option(
        "",
        "--keep COLUMNS",
        "columns of the data to write before the predictions: user,item",
        kinds=("predict",),
    )
    expanded: bool = declare(set_by="the checks before a job", default=False)
    """True if all names are names of files, so that no folders or patterns must be expanded."""
    format: str = option("auto", "--format NAME", "format of the files: see docs/data.md")
    """``auto`` selects the format by suffix and first bytes of a file."""
    batch_size: int = option(64, "--batch-size N", "records per minibatch and worker", minimum=1)
    records_per_task: int = option(
        0,
        "--records-per-task N",
        "records that a worker leases at once (default: 32 minibatches)",
        minimum=0,
    )
    """0 for 32 minibatches, rounded to whole windows of ``local_steps`` minibatches."""
    epochs: int = option(
        1,
        "--epochs N|stream",
        "passes over the training data; stream: what comes, without end",
        kinds=TRAIN,
        minimum=0,
    )
    """0 for a stream."""
    max_records: int = _train_option(
        0, "--max-records N", "end a stream after N records (default: no end)", minimum=0
    )
    shuffle: bool = _train_option(
        True, "--no-shuffle", "keep the order of the data (default: shuffled)"
    )
    """Seed and epoch determine the order of tasks and of the records of a task."""
    skip_damaged: bool = option(
        False, "--skip-damaged", "skip and count records that cannot be read (default: fail)"
    )
    loader_workers: int = option(
        0, "--loader-workers N", "DataLoader processes, if feed returns a Dataset", minimum=0
    )
    pin_memory: bool = option(
        False, "--pin-memory", "pin the memory of the batches of the DataLoader"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_records and not self.streams:
            raise UsageError(
                f"--max-records {self.max_records}: only a stream has no end of its own; add "
                "--epochs stream, or use --max-steps",
            )

    @property
    def kept(self) -> list[str]:
        """Columns of the data that are written before the predictions."""
        return self.keep.split(",") if self.keep else []

    @property
    def streams(self) -> bool:
        """True if the training data are streams without an end."""
        return self.epochs == 0
