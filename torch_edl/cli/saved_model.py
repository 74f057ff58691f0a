"""Finds the trained model of a folder or of a job that the user names."""

from __future__ import annotations

from pathlib import Path

from torch_edl.checkpoint import layout
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.jobs.folder import JobFolder


def resolve(named: str, *, option: str) -> str:
    """The output folder or the newest checkpoint that belongs to ``named``.

    Args:
        named: an output folder, a checkpoint, a folder of checkpoints, or a job of this machine.

    Returns:
        An absolute path.

    Raises:
        UsageError: there is no trained model, or a damaged one.
    """
    # The processes of the job may have other working folders; symbolic links are kept.
    path = Path(named).expanduser().absolute()
    try:
        found = _in_folder(path) if path.is_dir() else _of_job(named, option)
    except CheckpointError as error:
        raise UsageError(f"{option} {named}: {error}") from error
    if found is None:
        raise UsageError(
            f"{option} {named}: no trained model there; name the --output or the "
            "--checkpoint-dir of a job"
        )
    return str(found)


def _in_folder(path: Path) -> Path | None:
    if layout.is_export(path):
        return path
    found = path if layout.is_checkpoint(path) else layout.newest(path)
    if found is not None:
        layout.read(found)
    return found


def _of_job(named: str, option: str) -> Path | None:
    """The output of a job, or else its newest checkpoint."""
    path = Path(named)
    job = JobFolder(path.name)
    if path.name != named or not job.config_file.is_file():
        problem = "not a folder" if path.exists() else "no such folder, and no such job"
        raise UsageError(
            f"{option} {named}: {problem}; name the output or the checkpoints of a job"
        )
    config = job.config()
    # A script may choose the folder itself, and reports it to the master.
    last = str(job.last_status().get("checkpoint") or "")
    places = [config.checkpoint.output, config.checkpoint.dir, last]
    for place in places:
        if place and config.trains and Path(place).is_dir():
            found = _in_folder(Path(place))
            if found is not None:
                return found
    if not any(places) or not config.trains:
        raise UsageError(
            f"{option} {named}: the job kept no model; --output DIR or --checkpoint-dir DIR keeps "
            "one"
        )
    return None
