"""Checkpoints that a master finds when it begins, and its claim on their folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from master.state.actions import Saved
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import Claim, run_id
from torch_edl.config import JobConfig
from torch_edl.errors import CheckpointError


def claim(config: JobConfig, token: str) -> Claim | None:
    """Claim the checkpoint directory for this job; None if the job has none.

    Raises:
        UsageError: another job has the directory.
        OSError: the directory cannot be written.
    """
    root = config.checkpoint.dir
    if not root or config.kind not in ("train", "script"):
        return None
    return Claim(root, job=config.name, run=run_id(config.name, token))


def prepare(config: JobConfig) -> Saved | None:
    """Remove partial checkpoints, and return the checkpoint to resume from; None if there is
    none."""
    if not config.checkpoint.dir or config.kind not in ("train", "script"):
        return None
    root = Path(config.checkpoint.dir)
    layout.remove_leftovers(root)
    newest = layout.newest_to_resume(root, resume=config.checkpoint.resume)
    return None if newest is None else Saved(newest, layout.read(newest))


def newest(config: JobConfig, left: Mapping[str, Any], claim: Claim | None = None) -> Saved | None:
    """Return the newest checkpoint of a restarted job, which an earlier master may have committed
    without storing the fact; None if there is none. A checkpoint of another run counts only if it
    is in the stored state. A script's ring reads its checkpoints itself."""
    ring = config.kind == "script" and left["fleet"]["strategy"] != "ps"
    if ring or config.kind not in ("train", "script"):
        return None
    root, noted = config.checkpoint.dir, left["checkpoints"]["newest"]
    complete = [*(layout.complete(root) if root else ()), *([Path(noted)] if noted else ())]
    for path in sorted(set(complete), reverse=True):
        with contextlib.suppress(CheckpointError):
            found = Saved(path, layout.read(path))
            if str(path) == noted or claim is None or found.manifest.run == claim.run:
                return found
    return None


def evaluated(config: JobConfig, left: Mapping[str, Any] | None) -> list[Saved]:
    """Return the checkpoints that may be the best one by ``--keep-best``, oldest first: the best
    one of the earlier master, or all that have metrics in the folder that the job resumes.

    Args:
        left: state of the earlier master; None if the job begins.
    """
    if not config.train.keep_best:
        return []
    noted = left["checkpoints"]["best"] if left is not None else ""
    root = config.checkpoint.dir if left is None else ""
    paths = [*(layout.complete(root) if root else ()), *([Path(noted)] if noted else ())]
    found = []
    for path in paths:
        with contextlib.suppress(CheckpointError):
            found.append(Saved(path, layout.read(path)))
    return [each for each in found if each.manifest.metrics]
