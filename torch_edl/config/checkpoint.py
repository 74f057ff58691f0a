"""Where the model of a job comes from and where it is written: a part of the configuration of a
job."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch_edl.config.option import TRAINING, Checked, Option, declare, option
from torch_edl.errors import UsageError

PREPROCESSING_FILE = "preprocessing.safetensors"
"""What :mod:`torch_edl.preprocessing` fitted, in a checkpoint or in the folder of a model."""

_training_option = functools.partial(option, kinds=TRAINING)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """Where the model comes from and where it is written."""

    output: str = _training_option(
        "",
        "--output DIR",
        "write the trained model to DIR",
        Option(
            "--output FILE",
            ".parquet, .csv or .npz; rows in the order of the input",
            kinds=("predict",),
            required=True,
            group="data",
        ),
    )
    parts: str = declare(set_by="predict", default="")
    """The folder of predictions before they are merged, a file for each task; empty: none are
    made."""
    dir: str = option("", "--checkpoint-dir DIR", "write checkpoints to DIR", kinds=TRAINING)
    every: int = _training_option(
        0,
        "--checkpoint-every STEPS",
        "steps between two checkpoints (default: only at the end)",
        minimum=0,
    )
    keep: int = _training_option(
        3, "--keep-checkpoints N", "number of checkpoints to keep", minimum=1
    )
    """The newest ones stay."""
    resume: bool = _training_option(
        False, "--resume", "continue from the newest checkpoint in --checkpoint-dir"
    )
    load: str = _training_option(
        "",
        "--load SOURCE",
        "start from the model of a job, an output or a checkpoint",
        Option(
            "--from SOURCE",
            "the trained model: a job, an output folder or checkpoints",
            kinds=("evaluate", "predict"),
            required=True,
            group="model",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.every or self.resume) and not self.dir:
            given = "--resume" if self.resume else f"--checkpoint-every {self.every}"
            raise UsageError(f"{given}: add --checkpoint-dir DIR, where the checkpoints are")
