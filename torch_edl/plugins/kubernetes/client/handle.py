"""A job on a cluster, as commands see it."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from torch_edl.interfaces.platform import JobHandle, JobOutcome, LogQuery
from torch_edl.plugins.kubernetes.client.cluster_job import ClusterJob


class ClusterJobHandle(ClusterJob, JobHandle):
    """Implements :class:`~torch_edl.interfaces.JobHandle` with the Job object of a master.

    The base class has no attach and no logs, since these import it.
    """

    def __init__(self, job: ClusterJob) -> None:
        super().__init__(job.api, job.name, job.manifest)

    def attach(self, console: Console) -> JobOutcome | None:
        from torch_edl.plugins.kubernetes.client import run

        return run.attach(self, console)

    def read_logs(self, query: LogQuery, write: Callable[[str, str], None]) -> None:
        from torch_edl.plugins.kubernetes.client import logs

        logs.read(self, query, write)
