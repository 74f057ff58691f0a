"""Checks before a job is started: missing files, and folders that are in use."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from torch_edl.checkpoint import layout
from torch_edl.cli import saved_model, static_check, tensorboard
from torch_edl.config import CheckpointConfig, DataConfig, JobConfig
from torch_edl.errors import UsageError


def check(config: JobConfig, *, model_file: str, summary: str = "") -> JobConfig:
    """Checks a job of a model file without running user code or reading data.

    Args:
        model_file: the path as the user wrote it, for messages.
        summary: the file of ``--summary``; empty: none.

    Returns:
        The configuration with globs expanded and checkpoints found.

    Raises:
        UsageError: a file is missing, unreadable or in the way.
    """
    evaluates = config.kind == "evaluate" or bool(config.data.eval)
    bound = static_check.check(config.model_file, evaluates=evaluates, shown=model_file)
    data = _expand_data(config, custom_source="data_source" in bound)
    keep = _check_start(config.checkpoint, "--load" if config.kind == "train" else "--from")
    if config.kind == "train" and keep.output:
        check_output_dir(keep.output)
    _check_tensorboard(config)
    if summary:
        _check_writable(Path(summary), "--summary", is_file=True)
    return dataclasses.replace(config, data=data, checkpoint=keep)


def check_script(config: JobConfig) -> JobConfig:
    """Checks the folders of a script's job; the script itself has been checked.

    Raises:
        UsageError: a folder is missing or in the way.
    """
    if config.checkpoint.output:
        check_output_dir(config.checkpoint.output)
    _check_tensorboard(config)
    return dataclasses.replace(config, checkpoint=_check_start(config.checkpoint, "--load"))


def _check_tensorboard(config: JobConfig) -> None:
    if config.tensorboard:
        tensorboard.require()
        _check_writable(Path(config.tensorboard), "--tensorboard", is_file=False)


def _check_start(keep: CheckpointConfig, option: str) -> CheckpointConfig:
    """Finds the model to start from, and checks the folder of checkpoints."""
    if keep.load:
        keep = dataclasses.replace(keep, load=saved_model.resolve(keep.load, option=option))
    if keep.load and keep.resume:
        raise UsageError("--load and --resume: both say where to start; choose one")
    if keep.dir:
        _check_checkpoint_dir(keep.dir, resume=keep.resume)
    return keep


def _expand_data(config: JobConfig, *, custom_source: bool) -> DataConfig:
    from torch_edl.data.sources import expand

    data = config.data
    if custom_source:
        return data  # data_source of the model file interprets the names
    wanted = {"train": data.train, "evaluate": data.eval, "predict": data.predict}[config.kind]
    if not wanted:
        raise UsageError("--data: missing; name files, folders or globs: --data train.parquet")

    def files(paths: tuple[str, ...], option: str) -> tuple[str, ...]:
        if not paths:
            return ()
        try:
            return tuple(expand(paths))
        except UsageError as error:
            raise UsageError(f"{option} {error}") from error

    return dataclasses.replace(
        data,
        train=files(data.train, "--data"),
        eval=files(data.eval, "--eval-data" if config.kind == "train" else "--data"),
        predict=files(data.predict, "--data"),
    )


def check_output_dir(directory: str) -> None:
    """Raises UsageError unless ``directory`` is absent, empty or an earlier output."""
    path = Path(directory)
    if path.is_dir() and any(path.iterdir()) and not layout.is_export(path):
        raise UsageError(
            f"--output {directory}: holds files that are no output of torch-edl; "
            "choose another folder, or empty it"
        )
    _check_writable(path, "--output", is_file=False)


def check_output_file(file: str, suffixes: tuple[str, ...], *, option: str = "--output") -> None:
    """Raises UsageError unless ``file`` can be written and ends in one of ``suffixes``."""
    path = Path(file).expanduser()
    if path.suffix not in suffixes:
        raise UsageError(f"{option} {file}: the name must end in {' or '.join(suffixes)}")
    _check_writable(path, option, is_file=True)


def _check_checkpoint_dir(directory: str, *, resume: bool) -> None:
    _check_writable(Path(directory), "--checkpoint-dir", is_file=False)
    newest = layout.newest(directory)
    # Without this check, the newest checkpoint would later be the one of the earlier job.
    if newest is not None and not resume:
        raise UsageError(
            f"--checkpoint-dir {directory}: holds {newest.name} of an earlier job; "
            "add --resume to continue from it, or choose another folder"
        )


def _check_writable(path: Path, option: str, *, is_file: bool) -> None:
    if is_file and path.is_dir():
        raise UsageError(f"{option} {path}: a folder; name a file")
    if not is_file and path.exists() and not path.is_dir():
        raise UsageError(f"{option} {path}: a file; name a folder")
    # A folder is replaced by a rename, so its parent must be writable; missing parents are made.
    place = path.parent if is_file or not path.exists() else path
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UsageError(f"{option} {path}: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path}: {place} is not writable")
