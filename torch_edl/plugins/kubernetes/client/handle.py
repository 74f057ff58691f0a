"""A job on a cluster, as commands see it."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from torch_edl.interfaces.platform import JobHandle, JobOutcome, LogQuery
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.cluster.api import Api


class ClusterJobHandle(cluster_job.ClusterJob, JobHandle):
    """Implements :class:`~torch_edl.interfaces.JobHandle` with the Job object of a master."""

    def attach(self, console: Console) -> JobOutcome | None:
        from torch_edl.plugins.kubernetes.client import run

        return run.attach(self, console)

    def read_logs(self, query: LogQuery, write: Callable[[str, str], None]) -> None:
        from torch_edl.plugins.kubernetes.client import logs

        logs.read(self, query, write)


def find(api: Api, name: str | None) -> ClusterJobHandle:
    """Return a job; see :func:`torch_edl.plugins.kubernetes.client.cluster_job.find`."""
    return _handle(cluster_job.find(api, name))


def all_jobs(api: Api) -> list[JobHandle]:
    """Return all jobs of a namespace, newest first."""
    return [_handle(job) for job in cluster_job.all_jobs(api)]


def _handle(job: cluster_job.ClusterJob) -> ClusterJobHandle:
    return ClusterJobHandle(job.api, job.name, job.manifest)
