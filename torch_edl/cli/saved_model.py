"""Finds the trained model in a folder that the user named."""

from __future__ import annotations

from pathlib import Path

from torch_edl import checkpoint
from torch_edl.errors import CheckpointError, UsageError

METADATA = "metadata.json"
DENSE = "model.safetensors"


def is_output(directory: Path) -> bool:
    """Whether a job's ``--output`` lies there."""
    return (directory / METADATA).is_file() and (directory / DENSE).is_file()


def resolve(directory: str, *, option: str) -> str:
    """The output folder or the checkpoint that ``directory`` is or holds (the newest, then).

    Raises:
        UsageError: there is no trained model, or a damaged one.
    """
    path = Path(directory)
    if not path.is_dir():
        problem = "not a folder" if path.exists() else "no such folder"
        raise UsageError(f"{option} {directory}: {problem}; name what a job wrote")
    try:
        if is_output(path):
            return str(path)
        if (path / checkpoint.MANIFEST).exists():
            checkpoint.read(path)
            return str(path)
        newest = checkpoint.newest(path)
        if newest is not None:
            checkpoint.read(newest)
            return str(newest)
    except CheckpointError as error:
        raise UsageError(f"{option} {directory}: {error}") from error
    raise UsageError(
        f"{option} {directory}: no trained model there; name the --output or the "
        "--checkpoint-dir of a job"
    )
