"""All jobs of this machine: list, find, create and remove them."""

from __future__ import annotations

import contextlib
import fcntl
import math
import shutil
import time
from collections.abc import Iterator

from torch_edl.config import JobConfig
from torch_edl.config.environment import edl_home
from torch_edl.errors import UsageError
from torch_edl.files.durable import write_text
from torch_edl.launch.jobs.folder import CONFIG, JobFolder, jobs_home, make_jobs_home

KEEP_JOBS = 100
"""Number of folders of older jobs that are kept when a new job starts."""
KEEP_DAYS = 30.0
"""Days for which such a folder is kept after the last write of its job."""


def all_jobs() -> list[JobFolder]:
    """Return every job of this machine, newest first."""
    jobs = [JobFolder(config.parent.name) for config in jobs_home().glob(f"*/{CONFIG}")]
    found = sorted(((job.started(), job.name) for job in jobs), reverse=True)
    return [JobFolder(name) for started, name in found if started]  # 0: just removed


def find(name: str | None) -> JobFolder:
    """Return the job with that name, or the newest job for None.

    Raises:
        UsageError: there is no such job.
    """
    jobs = all_jobs()
    if not jobs:
        raise UsageError(f"no job on this machine ({edl_home()}); start one with torch-edl run")
    named = [job for job in jobs if name in (None, job.name)]
    if not named:
        raise UsageError(f"{name}: no such job; the newest is {jobs[0].name}, see torch-edl list")
    return named[0]


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Keeps all other processes of this user on this machine out of the blocks of that name."""
    with open(make_jobs_home() / f".{what}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_free(name: str) -> None:
    """Raise UsageError if a job of that name is running."""
    if JobFolder(name).is_running():
        raise UsageError(
            f"--job-name {name}: a job of that name is running; choose another, "
            f"or end it with torch-edl stop {name}"
        )


def create(config: JobConfig) -> JobFolder:
    """Create the folder of a new job, replacing that of an older job with the same name, and mark
    the job as watched by this process. Of several processes that create one job at once, one does.

    Raises:
        UsageError: a job of that name is running, the disk is full, or this user cannot write to
            the parent of the folder.
        OSError: the folder cannot be written.
    """
    with one_at_a_time("create"):
        return _create(config)


def _create(config: JobConfig) -> JobFolder:
    require_free(config.name)
    job = JobFolder(config.name)
    if job.dir.exists():
        if not job.config_file.exists() and any(job.dir.iterdir()):
            raise UsageError(f"{job.dir}: not the folder of a job; choose another --job-name")
        shutil.rmtree(job.dir)
    for old in outdated(days=KEEP_DAYS, keep=KEEP_JOBS):
        with contextlib.suppress(OSError):  # removed by another process, or not our file
            shutil.rmtree(old.dir)
    job.dir.mkdir(mode=0o700)
    try:
        if problem := job.no_room():
            raise UsageError(problem)
        write_text(job.config_file, config.to_json())
        job.hold()
    except (OSError, UsageError):
        shutil.rmtree(job.dir, ignore_errors=True)
        raise
    return job


def outdated(*, days: float | None, keep: int | None) -> list[JobFolder]:
    """Return the ended jobs that need not be kept, newest first.

    Args:
        days: age in days since the last write, from which a job is outdated; None for no limit.
        keep: number of newest jobs that are not outdated; None for no limit.
    """
    since = math.inf if days is None else days * 86400
    now = time.time()
    return [
        job
        for place, job in enumerate(all_jobs())
        if ((keep is not None and place >= keep) or now - job.touched() >= since) and job.is_over()
    ]
