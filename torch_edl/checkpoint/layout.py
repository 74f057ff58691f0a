"""The layout of checkpoint directories: a checkpoint is written to a temporary folder and appears
by one rename.

``DIR/step-0000001234/`` holds ``manifest.json`` and the files of every shard::

    shard-0-of-2.dense.safetensors          NAME -> value, ``NAME@SLOT``, ``NAME@step``
    shard-0-of-2.table-0.part-0.safetensors ids, vectors, slots, last_used, count
    shard-0-of-2.table-0.counts-0.safetensors ids without a row, count, last_used
    shard-0-of-1.optimizer.safetensors      state of torch optimizers, written by one worker
    ...

A folder without a manifest is not a checkpoint: a crash left it, and :func:`prune` removes it. The
manifest lists every file with its size, so a truncated file is found before anything is loaded.

The folder of an exported model holds ``model.safetensors``, ``metadata.json`` and
``embeddings/NAME.safetensors`` instead; see :mod:`torch_edl.checkpoint.export`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch_edl import typed_json
from torch_edl.checkpoint.durable import rename, sync, write_text
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import CheckpointError, UsageError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
EXPORTED_MODEL, EXPORTED_METADATA = "model.safetensors", "metadata.json"
_NAME = re.compile(r"step-(\d+)")
_TRAINING = re.compile(r"training-([1-9]\d{0,8})")
_TEMPORARY = ".snapshot-"


def step_dir(root: str | Path, steps: int) -> Path:
    """Return the folder of the checkpoint after ``steps`` minibatches."""
    return Path(root) / f"step-{steps:010d}"


def training_dirs(root: str | Path) -> dict[int, Path]:
    """Return the folders of the later trainings of a script by their numbers."""
    found = {path: _TRAINING.fullmatch(path.name) for path in Path(root).glob("training-*")}
    return {int(match[1]): path for path, match in sorted(found.items()) if match}


def temporary_dir(root: str | Path) -> Path:
    """Return a new path for a folder in which a checkpoint is written."""
    return Path(root) / f"{_TEMPORARY}{uuid.uuid4().hex}"


def is_checkpoint(directory: Path) -> bool:
    """Return whether the folder holds a complete checkpoint."""
    return (directory / MANIFEST).exists()


def is_export(directory: Path) -> bool:
    """Return whether the folder holds an exported model."""
    return (directory / EXPORTED_MODEL).is_file() and (directory / EXPORTED_METADATA).is_file()


def save(
    root: Path,
    steps: int,
    write: Callable[[Path], Manifest],
    *,
    run: str = "",
    restored: str = "",
    fence: Callable[[], None] = lambda: None,
    written: Path | None = None,
    anew: bool = False,
    metrics: Mapping[str, float] | None = None,
) -> tuple[Path, Manifest]:
    """Make the checkpoint after ``steps`` minibatches, or keep the complete one that is already
    there. All commits of checkpoints use this function.

    Args:
        write: writes the files to a temporary folder, which is new and empty, and returns their
            manifest.
        run: run of the job that commits.
        restored: checkpoint that the model was restored from, which another run may have written.
        written: temporary folder that has the files already. A process that dies during the commit
            leaves the folder, and another process can commit it.
        fence: raises if this process may no longer commit; called when all files are on the disk,
            right before the rename.
        anew: call ``write`` even if the checkpoint exists, and replace a checkpoint with other
            records, which is of a lost model.
        metrics: metrics of the model's evaluation; a checkpoint that is already there gets them
            too. None if the model was not evaluated.

    Returns:
        The folder of the checkpoint and its manifest.

    Raises:
        CheckpointError: a file is missing or has another size than in the manifest, or another run
            has written a checkpoint after the same number of minibatches.
        OSError: the disk is full or read-only.
        Exception: an exception of ``write`` or ``fence``. The temporary folder is removed in all
            cases.
    """
    directory, temporary = step_dir(root, steps), written or temporary_dir(root)
    if not anew and is_checkpoint(directory):
        return directory, _evaluated(directory, _own(directory, run, restored), metrics, fence)
    if written is None:
        temporary.mkdir(parents=True)
    try:
        manifest = replace(write(temporary), run=run, metrics=dict(metrics or {}))
        seal(temporary, manifest)
        fence()
        if is_checkpoint(directory):  # another process may have been faster
            found = _own(directory, run, restored)
            if not anew or found.watermarks == manifest.watermarks:
                return directory, _evaluated(directory, found, metrics, fence)
        if os.path.lexists(directory):  # left by a crash: without a manifest
            _remove(directory)
        rename(temporary, directory)
        return directory, manifest
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # no-op after the rename


def _own(directory: Path, run: str, restored: str) -> Manifest:
    """Return the manifest of a complete checkpoint, which must hold the model of this run.

    Raises:
        CheckpointError: the model is of another run, or the checkpoint is damaged.
    """
    found = read(directory)
    if found.run != run and str(directory) != restored:
        raise CheckpointError(
            f"{directory}: a checkpoint of another run, of the job {found.job or 'of a script'}; "
            "start the job again with a folder of its own"
        )
    return found


def _evaluated(
    directory: Path,
    found: Manifest,
    metrics: Mapping[str, float] | None,
    fence: Callable[[], None],
) -> Manifest:
    """Add the metrics of an evaluation to the manifest of a complete checkpoint. Returns it."""
    if not metrics or metrics == found.metrics:
        return found
    fence()
    manifest = replace(found, metrics=dict(metrics))
    write_text(directory / MANIFEST, manifest.to_json())
    return manifest


def seal(directory: Path, manifest: Manifest) -> None:
    """Add the manifest to a folder, after all files have reached the disk.

    Raises:
        CheckpointError: a listed file is missing or has another size.
        OSError: the disk is full or read-only.
    """
    verify_files(directory, manifest)
    for name in manifest.files:
        sync(directory / name)
    (directory / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    sync(directory / MANIFEST)
    sync(directory)


def read(directory: str | Path) -> Manifest:
    """Return the manifest of a checkpoint whose files are complete.

    Raises:
        CheckpointError: the manifest is missing or damaged, or a file does not match it.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = Manifest.from_json(typed_json.read(path))
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: no checkpoint there, {MANIFEST} is missing") from None
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not a manifest of a checkpoint: {error}") from error
    verify_files(Path(directory), manifest)
    return manifest


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Raise CheckpointError unless every file of the manifest exists with its size."""
    for name, size in manifest.files.items():
        path = directory / name
        if Path(name).name != name:
            raise CheckpointError(f"{directory}: the manifest names {name!r}, outside the folder")
        try:
            got = path.stat().st_size
        except (OSError, ValueError):  # missing, or a name that no file has
            got = None
        if got != size:
            raise CheckpointError(f"{path}: {got} bytes, the manifest says {size}; it is damaged")


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Return a context that names the cause of an error if the checkpoint that is read in it was
    removed: a running job prunes its checkpoints, and other jobs may have chosen one of them.

    Raises:
        CheckpointError: the folder is no longer a checkpoint.
    """
    try:
        yield
    except (CheckpointError, OSError) as error:
        if _NAME.fullmatch(directory.name) is None or is_checkpoint(directory):
            raise
        raise CheckpointError(
            f"{directory}: the checkpoint was removed after it had been chosen; a running job "
            "keeps only its newest checkpoints: keep more of them there (--keep-checkpoints), or "
            "name the --output of that job"
        ) from error


def newest(root: str | Path) -> Path | None:
    """Return the newest complete checkpoint under ``root``; None if there is none."""
    found = complete(root)
    return found[-1] if found else None


def trained_model(path: Path) -> Path | None:
    """Return the model at a path: the folder itself if it is an output or a checkpoint, else its
    newest checkpoint; None if there is none.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    if is_export(path):
        return path
    found = path if is_checkpoint(path) else newest(path)
    while found is not None:
        try:
            read(found)  # verifies the files
            return found
        except CheckpointError:
            if is_checkpoint(found) or found == path:
                raise
            found = newest(path)  # a running job has pruned the checkpoint
    return None


def newest_to_resume(
    root: str | Path, *, resume: bool, option: str = "--checkpoint-dir ", fix: str = "add --resume"
) -> Path | None:
    """Return the newest complete checkpoint under ``root``, for a job that begins; None if there is
    none.

    Raises:
        UsageError: there is one, and ``resume`` is False: later, it could be taken for a checkpoint
            of this job.
    """
    found = newest(root)
    if found is not None and not resume:
        raise UsageError(
            f"{option}{root}: holds {found.name} of an earlier job; {fix} to continue from it, or "
            "choose another folder"
        )
    return found


def complete(root: str | Path) -> list[Path]:
    """Return all complete checkpoints under ``root``, oldest first."""
    return [path for path in _folders(root) if is_checkpoint(path)]


def prune(newest: Path, keep: int, best: Path | None = None) -> None:
    """Remove the checkpoints before ``newest`` except the last ``keep - 1`` and ``best``, and
    incomplete folders.

    Folders after ``newest`` stay: one may be of a model that was lost before the job knew of the
    checkpoint. A symbolic link is removed, and its target stays: the user has moved the checkpoint
    there. A folder that cannot be removed is logged, and the next call tries again.
    """
    folders = _folders(newest.parent)
    before = folders[: folders.index(newest)]
    good = [path for path in before if is_checkpoint(path)]
    stay = good[max(0, len(good) - keep + 1) :]
    for path in before:
        if path in stay or path == best:
            continue
        try:
            _remove(path)
        except OSError as error:
            log.warning("old checkpoint %s cannot be removed: %s", path, error)


def _remove(directory: Path) -> None:
    """Remove a folder, or a symbolic link without its target."""
    if directory.is_symlink():
        directory.unlink()
        return
    # The manifest first: a folder that is partly removed must not look complete.
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory)


def remove_leftovers(root: str | Path) -> None:
    """Remove the temporary folders of killed processes. A process that is still writing to one
    fails to commit."""
    for path in list(Path(root).glob(f"{_TEMPORARY}*")):
        gone = temporary_dir(root)
        with contextlib.suppress(OSError):
            rename(path, gone)  # atomic: a later commit of the folder fails
            _remove(gone)


def _folders(root: str | Path) -> list[Path]:
    """Return the folders with the name of a checkpoint, sorted by steps as numbers (names have 10
    digits or more)."""
    found = {path: _NAME.fullmatch(path.name) for path in Path(root).glob("step-*")}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=lambda path: steps[path])
