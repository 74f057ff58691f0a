"""Makes the objects of a job on a cluster: all of them, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.kubernetes import job, names
from torch_edl.kubernetes.failures import ClusterError, ExistsError

Manifest = dict[str, Any]


class Objects(Protocol):
    """What of :class:`torch_edl.kubernetes.api.Api` this needs."""

    namespace: str

    def create(self, manifest: Manifest) -> Manifest: ...
    def get(self, kind: str, name: str) -> Manifest: ...
    def patch(self, kind: str, name: str, patch: Manifest) -> Manifest: ...
    def delete(self, kind: str, name: str, *, uid: str = "") -> None: ...


def submit(api: Objects, config: JobConfig, *, token: str, code: Mapping[str, bytes]) -> Manifest:
    """Makes the objects of a job, starts its master, and returns the Job of the master.

    The Job is made first and suspended, so that all others can belong to it from their beginning,
    and no pod starts before they are there. A client that dies on the way leaves a suspended Job.

    Args:
        config: see :func:`torch_edl.kubernetes.job.in_pods`.

    Raises:
        UsageError: there is a job of that name.
        ClusterError: the cluster refuses an object; all that was made is deleted again.
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


def is_over(manifest: Mapping[str, Any]) -> bool:
    """Whether a Job has ended, one way or the other."""
    return ending(manifest) is not None


def ending(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition that says how a Job ended; None: it has not."""
    conditions = (manifest.get("status") or {}).get("conditions") or []
    for each in conditions:
        if each.get("type") in ("Complete", "Failed") and each.get("status") == "True":
            found: Mapping[str, Any] = each
            return found
    return None


def _taken(api: Objects, name: str) -> str:
    there = f"--job-name {name}: there is a job of that name in namespace {api.namespace}"
    at = f"{name} --namespace {api.namespace}"
    with contextlib.suppress(ClusterError):
        if is_over(api.get("Job", names.master(name))):
            remove = f"kubectl delete job {names.master(name)} --namespace {api.namespace}"
            return f"{there}, which is over; remove it with {remove}"
    return f"{there}; choose another, or end that one with torch-edl stop {at}"
