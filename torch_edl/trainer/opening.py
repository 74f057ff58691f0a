"""Where a script's part in a job begins: ``init``.

The same three lines (``init``, ``prepare``, ``loader``) do nothing worth naming in a plain process,
and make the script elastic under ``torch-edl run`` or torchrun.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch_edl.environment import ENV_MASTER
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.processes.output import outlive_terminal
from torch_edl.trainer.job import Job
from torch_edl.trainer.saver import settings

_current: Job | None = None


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
    """The job of this process, before the model is built or after. In a notebook, where a cell is
    run again, the job before is closed.

    Args:
        seed: of the order of records.
        checkpoint_dir: checkpoints go there; empty: none are kept.
        checkpoint_every: updates between checkpoints; 0: one at the end only.
        keep_checkpoints: how many stay.
        resume: go on from the newest checkpoint there, if there is one.
        check_every: compare the parameters of all processes bit by bit each so many updates;
            0: never.
        on_resize: called with the job when the number of processes has changed.
        several: a process that trains alone keeps the job before open.

    What the command line gives (``torch-edl run --checkpoint-dir ...``) goes before these.

    Raises:
        UsageError: a value that cannot work; or one of several processes has a job already.
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
