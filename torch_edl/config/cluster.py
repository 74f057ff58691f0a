"""Configuration of the processes of a job."""

from __future__ import annotations

from dataclasses import dataclass

from torch_edl.config.option import JOB_KINDS, Checked, Option, declare, option
from torch_edl.config.training import FLOAT_DTYPES
from torch_edl.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Checked):
    """Number of processes of a job, and time limits after which a worker is declared lost."""

    min_workers: int = option(
        1,
        "--workers N|MIN:MAX",
        "number of worker processes, or a range",
        Option(
            "--workers N|MIN:MAX",
            "start MAX workers here; MIN suffice (default: --nproc-per-node)",
            kinds=("script",),
        ),
        minimum=1,
    )
    max_workers: int = declare(set_by="--workers", default=1)
    spares: int = option(
        0,
        "--spares N",
        "processes that can replace a worker at once (default: 1 from --workers 2 on)",
        minimum=0,
    )
    servers: int = option(
        1,
        "--ps, --servers N",
        "parameter servers, with the strategy ps",
        kinds=JOB_KINDS,
        minimum=1,
    )
    wire_dtype: str = option(
        "fp32",
        "--wire-dtype fp32|bf16|fp16",
        "type of rows and gradients on the way to servers and back",
        kinds=JOB_KINDS,
        choices=FLOAT_DTYPES,
    )
    worker_threads: int = option(
        0, "--worker-threads N", "torch threads per worker (default: cores / workers)", minimum=0
    )
    heartbeat_timeout_s: float = option(
        30.0,
        "--heartbeat-timeout S",
        "declare a worker lost after S seconds without a heartbeat",
        kinds=JOB_KINDS,
    )
    grace_s: float = option(
        25.0,
        "--grace-period S",
        "a worker that gets SIGTERM leaves within S seconds",
        kinds=JOB_KINDS,
    )
    """The default is below the 30 s after which Kubernetes and torchrun send SIGKILL."""
    task_timeout_s: float = option(
        600.0, "--task-timeout S", "replace a worker that makes no progress for S seconds"
    )
    join_timeout_s: float = declare(set_by="join_timeout of torchrun's --rdzv-conf", default=600.0)
    """Seconds for which the workers of a script wait for their first ring."""
    max_task_failures: int = option(
        3, "--max-task-failures N", "fail the job after N exceptions in the same task"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_workers > self.max_workers:
            raise UsageError(
                f"--workers {self.min_workers}:{self.max_workers}: the minimum is above the "
                f"maximum; write {self.max_workers}:{self.min_workers}"
            )
