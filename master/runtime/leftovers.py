"""What a job leaves on disks besides its checkpoints: its journals and temporary files, and what of
them goes when the job is over."""

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
from torch_edl.config.checkpoint import PREPROCESSING_FILE
from torch_edl.errors import CheckpointError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.ps_server.identity import run_of

log = logging.getLogger(__name__)


def journals_of(config: JobConfig, folder: JobFolder, token: str) -> Path:
    """The folder of the journals of this run. The folder of the job goes with the run; another one,
    which jobs of other machines may share, has a folder for each run."""
    parent = config.durability.journal_dir
    if not parent:
        return folder.dir / "journal" / run_of(token)
    return Path(parent) / config.name / run_of(token)


def left_journals(config: JobConfig, own: Path) -> Sequence[str]:
    """What is to be said of the journals of other runs of this name."""
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
    """Whether the user may continue a job that is over: it failed, and its journals have the
    model."""
    return job.config.kind == "train" and _has_failed(job) and journals.exists()


def tidy(job: Job, temporary: Path, journals: Path, claim: Claim | None, *, goes_on: bool) -> None:
    """Removes what nobody needs of a job that is over.

    Args:
        goes_on: the user may continue the job.
    """
    failed = _has_failed(job)
    if not goes_on:
        # The final state of a job that keeps no checkpoints.
        shutil.rmtree(temporary / "final", ignore_errors=True)
        (temporary / PREPROCESSING_FILE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is the folder of the job, or the job may continue
        temporary.rmdir()
    if failed and journals.exists():
        log.warning("the journals of this job stay in %s, since it failed", journals)
    else:
        shutil.rmtree(journals, ignore_errors=True)
        with contextlib.suppress(OSError):  # journals of other runs are there
            journals.parent.rmdir()
    if job.config.checkpoint.parts and not failed:
        shutil.rmtree(job.config.checkpoint.parts, ignore_errors=True)
    if claim is not None and job.config.kind == "train":
        with contextlib.suppress(CheckpointError):  # another job has the folder now
            claim.check()
            layout.remove_leftovers(job.config.checkpoint.dir)
