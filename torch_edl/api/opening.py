"""``init``, which makes the job of a script.

The same three lines (``init``, ``prepare``, ``loader``) make a script elastic under ``torch-edl
run`` or torchrun. In a plain process they have almost no effect.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from torch_edl import _core
from torch_edl.api.in_ring import Totals
from torch_edl.api.job import Job
from torch_edl.api.saver import TrainedSaver, settings
from torch_edl.config import CheckpointConfig
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN, ENV_UNSEEN, own_id
from torch_edl.errors import DismissedError, TrainingOverError, UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.processes.this_process import outlive_terminal
from torch_edl.pytorch.torch_internals import defer_compiler

log = logging.getLogger(__name__)

_current: Job | None = None
_trainings: dict[tuple[str, str], int] = {}
"""Number of the newest training of this process, by address and token of its master."""
_newest: weakref.ref[Job] | None = None
"""The newest job. The reference is weak, so that a notebook can release the model."""


class JobOptions(TypedDict, total=False):
    """The arguments of :func:`init`, for callers that pass them on."""

    seed: int
    checkpoint_dir: str | os.PathLike[str]
    checkpoint_every: int
    keep_checkpoints: int
    resume: bool
    check_every: int
    on_resize: Callable[[Job], None] | None
    on_nan: str


def init(
    *,
    seed: int = 0,
    checkpoint_dir: str | os.PathLike[str] = "",
    checkpoint_every: int = 0,
    keep_checkpoints: int = 3,
    resume: bool = False,
    check_every: int = 0,
    on_resize: Callable[[Job], None] | None = None,
    on_nan: str = "stop",
    several: bool = False,
) -> Job:
    """Make the job of this process. The model may be built before or afterwards.

    In a process that trains alone, a second call closes the job of the first call, so that the
    cells of a notebook can be run again.

    Args:
        seed: seed of the order of records.
        checkpoint_dir: folder of the checkpoints; empty: the job writes none.
        checkpoint_every: number of updates between two checkpoints; 0: one checkpoint at the end.
        keep_checkpoints: number of checkpoints that the job keeps.
        resume: restore the newest checkpoint in the folder, if there is one.
        check_every: number of updates after which all processes compare their parameters bit by
            bit; 0: never.
        on_resize: called with the job when the number of processes has changed.
        on_nan: ``"stop"``: an update whose gradients are not finite fails the job; ``"skip"``: the
            update is left out.
        several: keep the earlier job of a process that trains alone open.

    Options of the command line (``torch-edl run --checkpoint-dir ...``) override these arguments.

    Raises:
        UsageError: a value is out of range; or this process is one of several and has an open job.
    """
    global _current, _newest
    defer_compiler()
    checkpoint = settings(checkpoint_dir, checkpoint_every, keep_checkpoints, resume=resume)
    several = several and is_plain()
    if _current is not None and not _current.closed and not several:
        if not is_plain():
            raise UsageError(
                "torch_edl.init(): this process has a job already; close() it first, or give it to "
                "ElasticTrainer(..., job=job)"
            )
        _current.close()
    if os.environ.get(ENV_UNSEEN):
        log.warning(
            "this job is not elastic: torch-edl run found no torch_edl in the script and in the "
            "modules beside it, and runs it as torchrun does; write `import torch_edl` in the "
            "script if a package that it imports calls torch_edl.init()"
        )
    options: dict[str, Any] = {
        "seed": seed,
        "check_every": check_every,
        "on_resize": on_resize,
        "on_nan": on_nan,
    }
    if os.environ.get(ENV_MASTER):
        outlive_terminal()
        _core.tune_malloc()
        job = _launched(checkpoint, options)
    else:
        job = Job(None, checkpoint, **options)
    if not several:
        _current = job
    _newest = weakref.ref(job)
    return job


def _launched(checkpoint: CheckpointConfig, options: Mapping[str, Any]) -> Job:
    """Return the job of a process that a node or torchrun started. Each call begins another
    training.

    Raises:
        SystemExit: the job is over; the exit code is 0.
    """
    job = (os.environ[ENV_MASTER], os.environ.get(ENV_TOKEN, ""))
    number, before = _trainings.get(job, 0) + 1, Totals()
    if number > 1 and _current is not None:
        before = _current.totals
    try:
        made = Job(MasterSession(own_id(), training=number), checkpoint, before=before, **options)
    except TrainingOverError as over:
        log.info("training %d is over: continuing with %s", number, over.checkpoint)
        trained = TrainedSaver(Path(over.checkpoint), over.results)
        made = Job(None, checkpoint, before=before, trained=trained, **options)
    except DismissedError as error:
        log.info("leaving: %s", error)
        raise SystemExit(0) from None
    _trainings[job] = number
    return made


def current_job() -> Job | None:
    """Return the newest open job of this process; None if there is none.

    The job was made by :func:`init` or an ``ElasticTrainer``. A library that is not passed the job
    can use this function to log metrics and read the rank.
    """
    job = None if _newest is None else _newest()
    return None if job is None or job.closed else job


def adopted(options: Mapping[str, Any]) -> Job:
    """Return the job for a trainer: the open job of the script if it has no model yet, or else a
    new job.

    Args:
        options: arguments of :func:`init` that were passed to the trainer.

    Raises:
        UsageError: there is an open job, and ``options`` is not empty; or see :func:`init`.
    """
    if _current is None or _current.closed or _current.prepared:
        return init(several=True, **options)  # a notebook may have several trainers
    check_options(options)
    return _current


def check_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError if ``options`` is not empty; called for a trainer whose job exists."""
    if options:
        raise UsageError(
            f"ElasticTrainer(): torch_edl.init() has made the job; pass {', '.join(options)} to "
            "torch_edl.init()"
        )


def is_plain() -> bool:
    """Return True if this process trains alone: it has no master, and its world size is 1."""
    return not os.environ.get(ENV_MASTER) and int(os.environ.get("WORLD_SIZE", "1")) == 1
