"""Folders of checkpoints: a checkpoint becomes complete when its manifest, the last file, is
written.

``DIR/step-0000001234/`` holds ``manifest.json`` and the files of every shard::

    shard-0-of-2.dense.safetensors          NAME -> value, ``NAME@SLOT``, ``NAME@step``
    shard-0-of-2.table-0.part-0.safetensors ids, vectors, slots, last_used, count
    shard-0-of-1.optimizer.safetensors      of a replica: the state of torch optimizers
    ...

A folder without a manifest is not a checkpoint: a crash left it, and :func:`save` or :func:`prune`
removes it. The manifest lists every file with its size, so a truncated file is found before
anything is loaded.

The folder of an exported model holds ``model.safetensors``, ``metadata.json`` and
``embeddings/NAME.safetensors`` instead; see :mod:`torch_edl.checkpoint.export`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import CheckpointError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
EXPORTED_MODEL, EXPORTED_METADATA = "model.safetensors", "metadata.json"
_NAME = re.compile(r"step-(\d+)")


def step_dir(root: str | Path, steps: int) -> Path:
    """The folder of the checkpoint after ``steps`` minibatches."""
    return Path(root) / f"step-{steps:010d}"


def is_checkpoint(directory: Path) -> bool:
    """Whether the folder holds a complete checkpoint."""
    return (directory / MANIFEST).exists()


def is_export(directory: Path) -> bool:
    """Whether the folder holds an exported model."""
    return (directory / EXPORTED_MODEL).is_file() and (directory / EXPORTED_METADATA).is_file()


def save(root: Path, steps: int, write: Callable[[Path], Manifest]) -> tuple[Path, Manifest]:
    """Makes the checkpoint after ``steps`` minibatches, or keeps the one that is complete already.

    Args:
        write: writes the files into the folder, which is new and empty, and describes them.

    Returns:
        The folder of the checkpoint and its manifest.

    Raises:
        CheckpointError: a file is missing or has another size than the manifest says.
        OSError: the disk is full or read-only.
        Exception: whatever ``write`` raised. The folder is removed in all three cases.
    """
    directory = step_dir(root, steps)
    if is_checkpoint(directory):
        return directory, read(directory)
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    try:
        manifest = write(directory)
        commit(directory, manifest)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory, manifest


def commit(directory: Path, manifest: Manifest) -> None:
    """Completes a checkpoint: all files reach the disk, then the manifest appears by rename.

    Raises:
        CheckpointError: a listed file is missing or has another size.
        OSError: the disk is full or read-only.
    """
    verify_files(directory, manifest)
    for name in manifest.files:
        _sync(directory / name)
    temporary = directory / (MANIFEST + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)
    _sync(directory)
    _sync(directory.parent)


def read(directory: str | Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there.

    Raises:
        CheckpointError: the manifest is missing or damaged, or a file does not match it.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = Manifest.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: no checkpoint there, {MANIFEST} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a manifest of a checkpoint: {error}") from error
    verify_files(Path(directory), manifest)
    return manifest


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Raises CheckpointError unless every file of the manifest exists with its size."""
    for name, size in manifest.files.items():
        path = directory / name
        if Path(name).name != name:
            raise CheckpointError(f"{directory}: the manifest names {name!r}, outside the folder")
        got = path.stat().st_size if path.exists() else None
        if got != size:
            raise CheckpointError(f"{path}: {got} bytes, the manifest says {size}; it is damaged")


def newest(root: str | Path) -> Path | None:
    """The newest complete checkpoint under ``root``, or None."""
    found = complete(root)
    return found[-1] if found else None


def complete(root: str | Path) -> list[Path]:
    """All complete checkpoints under ``root``, oldest first."""
    return [path for path in _folders(root) if is_checkpoint(path)]


def prune(root: str | Path, keep: int) -> None:
    """Removes all but the newest ``keep`` checkpoints, and the incomplete folders of crashes.

    The newest complete checkpoint always stays, and so does every folder newer than it. A folder
    that cannot be removed is logged, and the next call tries again.
    """
    good = complete(root)
    if not good:
        return
    stay = set(good[-max(1, keep) :])
    for path in _folders(root):
        if path == good[-1]:
            return
        if path in stay:
            continue
        try:
            # The manifest first: a folder that is partly removed must not look complete.
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
        except OSError as error:
            log.warning("old checkpoint %s cannot be removed: %s", path, error)


def _folders(root: str | Path) -> list[Path]:
    """Folders with the name of a checkpoint, sorted by steps as numbers (names have 10 digits or
    more)."""
    found = {path: _NAME.fullmatch(path.name) for path in Path(root).glob("step-*")}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=lambda path: steps[path])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
