"""``init``: the entry of a script into its job.

The same three lines (``init``, ``prepare``, ``loader``) change next to nothing in a plain process,
and make the script elastic under ``torch-edl run`` or torchrun.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypedDict

from torch_edl.environment import ENV_MASTER
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.processes.output import outlive_terminal
from torch_edl.trainer.job import Job
from torch_edl.trainer.saver import settings

_current: Job | None = None


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
    global _current
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
    if os.environ.get(ENV_MASTER):
        outlive_terminal()
        session = MasterSession()
    job = Job(session, checkpoint, seed=seed, check_every=check_every, on_resize=on_resize)
    if not several:
        _current = job
    return job


def is_plain() -> bool:
    """Whether this process trains alone: no master and no torchrun started it."""
    return not os.environ.get(ENV_MASTER) and int(os.environ.get("WORLD_SIZE", "1")) == 1
