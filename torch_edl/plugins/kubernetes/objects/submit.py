"""Creates the objects of a job on a cluster: all of them, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, ExistsError
from torch_edl.plugins.kubernetes.cluster.pod_state import mapping, mappings
from torch_edl.plugins.kubernetes.names import Manifest
from torch_edl.plugins.kubernetes.objects import job


def submit(api: Api, config: JobConfig, *, token: str, code: Mapping[str, bytes]) -> Manifest:
    """Create the objects of a job, start its master, and return the Job of the master.

    The Job is created first and suspended, so that it owns all other objects from their creation,
    and no pod starts before they exist. A client that dies meanwhile leaves a suspended Job.

    Args:
        config: configuration from :func:`torch_edl.plugins.kubernetes.objects.job.in_pods`.

    Raises:
        UsageError: a job of that name exists.
        ClusterError: the cluster rejects an object; all created objects are deleted again.
    """
    *objects, master = job.objects(config, namespace=api.namespace, token=token, code=code)
    name = names.master(config.name)
    try:
        made = api.create(job.suspended(master))
    except ExistsError as error:
        raise UsageError(_taken(api, config.name)) from error
    uid = made["metadata"]["uid"]
    try:
        for each in objects:
            api.create(job.owned(each, uid))
        return api.patch("Job", name, job.RESUME)
    except BaseException:
        with contextlib.suppress(ClusterError):
            api.delete("Job", name, uid=uid)
        raise


def ending(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the condition that tells how a Job ended; None if it has not ended."""
    for each in mappings(mapping(manifest, "status"), "conditions"):
        if each.get("type") in ("Complete", "Failed") and each.get("status") == "True":
            return each
    return None


def _taken(api: Api, name: str) -> str:
    there = f"--job-name {name}: there is a job of that name in namespace {api.namespace}"
    at = f"{name} --namespace {api.namespace}"
    with contextlib.suppress(ClusterError):
        if ending(api.get("Job", names.master(name))) is not None:
            remove = f"kubectl delete job {names.master(name)} --namespace {api.namespace}"
            return f"{there}, which is over; remove it with {remove}"
    return f"{there}; choose another, or end that one with torch-edl stop {at}"
