"""``init``: the entry of a script into its job.

The same three lines (``init``, ``prepare``, ``loader``) change next to nothing in a plain process,
and make the script elastic under ``torch-edl run`` or torchrun.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from torch_edl.api.job import Job
from torch_edl.api.saver import settings
from torch_edl.config.environment import ENV_MASTER, ENV_UNSEEN
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.processes.output import outlive_terminal

log = logging.getLogger(__name__)

_current: Job | None = None
_newest: weakref.ref[Job] | None = None
"""The newest job; weak, so that a notebook can free the model."""


class JobOptions(TypedDict, total=False):
    """The arguments of :func:`init`, for callers that hand them on."""

    seed: int
    checkpoint_dir: str | os.PathLike[str]
    checkpoint_every: int
    keep_checkpoints: int
    resume: bool
    check_every: int
    on_resize: Callable[[Job], None] | None


def init(
    *,
    seed: int = 0,
    checkpoint_dir: str | os.PathLike[str] = "",
    checkpoint_every: int = 0,
    keep_checkpoints: int = 3,
    resume: bool = False,
    check_every: int = 0,
    on_resize: Callable[[Job], None] | None = None,
    several: bool = False,
) -> Job:
    """Makes the job of this process; the model may be built before or afterwards.

    A second call closes the job of the first one where the process trains alone, so that the cells
    of a notebook can be run again.

    Args:
        seed: seed of the order of records.
        checkpoint_dir: folder of the checkpoints; empty: the job writes none.
        checkpoint_every: number of updates between two checkpoints; 0: one checkpoint at the end.
        keep_checkpoints: number of checkpoints that the job keeps.
        resume: restore the newest checkpoint in the folder, if there is one.
        check_every: number of updates after which all processes compare their parameters bit by
            bit; 0: never.
        on_resize: called with the job when the number of processes has changed.
        several: a process that trains alone keeps its earlier job open.

    Options of the command line (``torch-edl run --checkpoint-dir ...``) override these arguments.

    Raises:
        UsageError: a value is out of range; or one of several processes has a job already.
    """
    global _current, _newest
    checkpoint = settings(checkpoint_dir, checkpoint_every, keep_checkpoints, resume=resume)
    several = several and is_plain()
    if _current is not None and not _current.closed and not several:
        if not is_plain():
            raise UsageError(
                "torch_edl.init(): this process has a job already; close() it first, or give it to "
                "ElasticTrainer(..., job=job)"
            )
        _current.close()
    session = None
    if os.environ.get(ENV_UNSEEN):
        log.warning(
            "this job is not elastic: torch-edl run found no torch_edl in the script and in the "
            "modules beside it, and runs it as torchrun does; write `import torch_edl` in the "
            "script if a package that it imports calls torch_edl.init()"
        )
    if os.environ.get(ENV_MASTER):
        outlive_terminal()
        session = MasterSession()
    job = Job(session, checkpoint, seed=seed, check_every=check_every, on_resize=on_resize)
    if not several:
        _current = job
    _newest = weakref.ref(job)
    return job


def current_job() -> Job | None:
    """Returns the newest open job of this process; None if there is none.

    :func:`init` or an ``ElasticTrainer`` made it. A library can log metrics and read the rank
    without a job among its arguments.
    """
    job = None if _newest is None else _newest()
    return None if job is None or job.closed else job


def adopted(options: Mapping[str, Any]) -> Job:
    """The job of a trainer: the open one that the script made and has given no model yet, or else
    one of the trainer's own.

    Args:
        options: arguments of :func:`init` that the trainer was given.

    Raises:
        UsageError: there is an open job, and options for another; see :func:`init`.
    """
    if _current is None or _current.closed or _current.prepared:
        return init(several=True, **options)  # a notebook may have several trainers
    check_options(options)
    return _current


def check_options(options: Mapping[str, Any]) -> None:
    """Raises UsageError if a trainer has options of a job and the job exists already."""
    if options:
        raise UsageError(
            f"ElasticTrainer(): torch_edl.init() has made the job; pass {', '.join(options)} to "
            "torch_edl.init()"
        )


def is_plain() -> bool:
    """Whether this process trains alone: no master and no torchrun started it."""
    return not os.environ.get(ENV_MASTER) and int(os.environ.get("WORLD_SIZE", "1")) == 1
