"""Journals and temporary files of a job, and their removal after its end."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from master.state.job.job import Job
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import Claim
from torch_edl.config import JobConfig
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.errors import CheckpointError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.ps_server.durability.identity import run_of

log = logging.getLogger(__name__)


def journals_of(config: JobConfig, folder: JobFolder, token: str) -> Path:
    """Return the folder of the journals of this run: below the job's folder, or below
    --journal-dir, which jobs of several machines may share."""
    parent = config.durability.journal_dir
    if not parent:
        return folder.dir / "journal" / run_of(token)
    return Path(parent) / config.name / run_of(token)


def left_journals(config: JobConfig, own: Path) -> Sequence[str]:
    """Return a warning for each folder of journals that another run of this name left."""
    shared = bool(config.durability.journal_dir) and own.parent.is_dir()
    others = sorted(path.name for path in own.parent.iterdir() if path != own) if shared else ()
    return [
        f"{own.parent / name}: journals of another run of a job {config.name}, which failed, was "
        "killed, or still runs; remove the folder if that run is over"
        for name in others
    ]


def _has_failed(job: Job) -> bool:
    return job.lifecycle.outcome is None or job.lifecycle.outcome.state == "failed"


def may_go_on(job: Job, journals: Path) -> bool:
    """Return whether the user may continue a job that is over: it failed, and its journals
    exist."""
    return job.config.kind == "train" and _has_failed(job) and journals.exists()


def tidy(job: Job, temporary: Path, journals: Path, claim: Claim | None, *, goes_on: bool) -> None:
    """Remove the files of a job that is over.

    Args:
        goes_on: the user may continue the job, so its state is kept.
    """
    failed = _has_failed(job)
    if not goes_on:
        # Final checkpoint of a job without a checkpoint directory.
        shutil.rmtree(temporary / "final", ignore_errors=True)
        (temporary / PREPROCESSING_FILE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: the job's own folder, or one to continue
        temporary.rmdir()
    if failed and journals.exists():
        log.warning("the journals of this job stay in %s, since it failed", journals)
    else:
        shutil.rmtree(journals, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: it has journals of other runs
            journals.parent.rmdir()
    if job.config.checkpoint.parts and not failed:
        shutil.rmtree(job.config.checkpoint.parts, ignore_errors=True)
    if claim is not None and job.config.kind == "train":
        with contextlib.suppress(CheckpointError):  # another job has claimed the folder
            claim.check()
            layout.remove_leftovers(job.config.checkpoint.dir)
