"""Checkpoints: a folder per checkpoint, made whole by a manifest that is written last.

``DIR/step-00001234/`` holds ``manifest.json`` and the files of every shard::

    shard-0-of-2.dense.safetensors          NAME -> value, ``NAME@SLOT``, ``NAME@step``
    shard-0-of-2.table-0.part-0.safetensors ids, vectors, slots, last_used, count
    ...

A folder without a manifest is no checkpoint: it is left over from a crash and removed. Every
file is listed with its size, so a truncated one is found before anything is loaded.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import CheckpointError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")


def step_dir(root: str | Path, steps: int) -> Path:
    """The folder of the checkpoint after ``steps`` minibatches."""
    return Path(root) / f"step-{steps:010d}"


def commit(directory: Path, manifest: Manifest) -> None:
    """Makes a folder of files a checkpoint: all on disk, then the manifest, by rename.

    Raises:
        CheckpointError: a listed file is missing or has another size.
        OSError: the disk refused (full, read-only).
    """
    verify_files(directory, manifest)
    for name in manifest.files:
        _sync(directory / name)
    raw = asdict(manifest)
    raw["watermarks"] = {str(k): v for k, v in manifest.watermarks.items()}
    temporary = directory / (MANIFEST + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(raw, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)
    _sync(directory)
    _sync(directory.parent)


def read(directory: str | Path) -> Manifest:
    """Reads and checks one checkpoint.

    Raises:
        CheckpointError: no manifest, not one of ours, or a file that does not match it.
    """
    path = Path(directory) / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw["watermarks"] = {int(k): int(v) for k, v in raw["watermarks"].items()}
        raw["versions"] = tuple(raw["versions"])
        manifest = Manifest(**raw)
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: no checkpoint there, {MANIFEST} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a manifest of a checkpoint: {error}") from error
    verify_files(Path(directory), manifest)
    return manifest


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Raises CheckpointError unless every file of the manifest is there with its size."""
    for name, size in manifest.files.items():
        path = directory / name
        if Path(name).name != name:
            raise CheckpointError(f"{directory}: the manifest names {name!r}, outside the folder")
        got = path.stat().st_size if path.exists() else None
        if got != size:
            raise CheckpointError(f"{path}: {got} bytes, the manifest says {size}; it is damaged")


def newest(root: str | Path) -> Path | None:
    """The newest complete checkpoint under ``root``; None if there is none."""
    found = complete(root)
    return found[-1] if found else None


def complete(root: str | Path) -> list[Path]:
    """All checkpoints under ``root`` that have a manifest, oldest first."""
    return [path for path in _folders(root) if (path / MANIFEST).exists()]


def prune(root: str | Path, keep: int) -> None:
    """Removes all but the newest ``keep`` checkpoints, and what crashes left half-written.

    The newest complete one always stays, and so does everything newer than it. What cannot be
    removed costs its space only: it is logged, and tried again next time.
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
            # The manifest goes first: a folder that is being removed is no checkpoint.
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
        except OSError as error:
            log.warning("old checkpoint %s cannot be removed: %s", path, error)


def _folders(root: str | Path) -> list[Path]:
    """Folders with the name of a checkpoint, by their steps: as texts, 10**10 is below 2."""
    found = {path: _NAME.fullmatch(path.name) for path in Path(root).glob("step-*")}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=lambda path: steps[path])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
