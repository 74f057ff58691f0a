"""Configuration of the source of the model and of its outputs and checkpoints."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch_edl.config.option import TRAINING, Checked, Option, declare, option
from torch_edl.errors import UsageError

PREPROCESSING_FILE = "preprocessing.safetensors"
"""File of the fitted preprocessing in a checkpoint or model folder."""

_training_option = functools.partial(option, kinds=TRAINING)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """Source of the model, outputs and checkpoints."""

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
    """Folder of partial predictions, one file per task, before they are merged; empty if there are
    none."""
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
    """The newest checkpoints are kept."""
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
