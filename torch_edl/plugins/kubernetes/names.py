"""Names, labels and paths that all objects of a job share. Pure.

Every object is named after its job and carries the labels that Kubernetes recommends, so that a
user or any client with the kubeconfig can find it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

Manifest = dict[str, Any]
"""An object of the API, as plain data."""

PLATFORM = "kubernetes"
"""Name of the platform, the value of ``--platform``."""
DOMAIN = "torch-edl.dev"
JOB = f"{DOMAIN}/job"
ROLE = f"{DOMAIN}/role"
ID = f"{DOMAIN}/id"
INCARNATION = f"{DOMAIN}/incarnation"
"""Label with the incarnation of the job's state. A master that lost the state starts a new
incarnation, and pods of earlier ones are not part of the job."""

STATUS = f"{DOMAIN}/status"
"""Annotation of the master's Job that says how the job ended."""
HISTORY = f"{DOMAIN}/history"
"""Annotation of the master's Job with the curves and the newest events of the job, compressed."""
STOP = f"{DOMAIN}/stop"
"""Annotation of the master's Job with which a client without a connection stops the job."""
ADOPTS = f"{DOMAIN}/adopts"
"""Annotation of a Job whose objects a user applied; the master becomes the owner of the objects."""

JOB_UID = "batch.kubernetes.io/controller-uid"
"""Label of a pod with the uid of its Job, by which the Job controller finds the pod."""

MASTER_PORT = 29400
"""The port of the master at the address of its pod."""
CONTAINER = "main"
"""Name of the container that runs the process of the job."""
TOKEN_KEY = "token"
"""Key of the job's token in its Secret."""
CONFIG_KEY = "job.json"
"""Key of the job's configuration in its ConfigMap."""

FILES = "/etc/torch-edl"
"""Mount path of the job's ConfigMap in all pods."""
CODE = f"{FILES}/code"
"""Folder of the model file and of the modules that were sent with it."""
HOME = "/var/lib/torch-edl"
"""Folder of the master for its jobs; on a claim if the job has one for its state."""
TMP = "/tmp"
"""Folder that a pod may write to, besides its volumes; deleted with the pod."""

# The name of an object has at most 63 characters. For a pod, the name of the job is followed by
# role, number and incarnation: "-worker-1234567-abcdef".
_JOB_CHARS = 40
_HASH_CHARS = 6


def of_job(job: str) -> str:
    """Return the name of a job as a DNS label; different jobs have different labels."""
    plain = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    if plain == job and len(plain) <= _JOB_CHARS and plain[0].isalpha():
        return plain
    digest = hashlib.sha256(job.encode()).hexdigest()[:_HASH_CHARS]
    stem = plain if plain[:1].isalpha() else f"job-{plain}"
    return f"{stem[: _JOB_CHARS - _HASH_CHARS - 1].rstrip('-')}-{digest}"


def master(job: str) -> str:
    """Return the name of the master's Job, Service, ServiceAccount, Role and RoleBinding."""
    return f"{of_job(job)}-master"


def token(job: str) -> str:
    """Return the name of the Secret with the token of a job."""
    return f"{of_job(job)}-token"


def files(job: str) -> str:
    """Return the name of the ConfigMap with the configuration and the code of a job."""
    return f"{of_job(job)}-files"


def state(job: str) -> str:
    """Return the name of the ConfigMap with the state of the master, if the job has one."""
    return f"{of_job(job)}-state"


def belongings(job: str) -> list[tuple[str, str]]:
    """Return the kinds and names of the objects that the master's Job owns, except for pods."""
    own = ("Service", "ServiceAccount", "Role", "RoleBinding")
    return [
        ("Secret", token(job)),
        ("ConfigMap", files(job)),
        ("ConfigMap", state(job)),
        ("NetworkPolicy", of_job(job)),
        *((kind, master(job)) for kind in own),
    ]


def code_key(place: int) -> str:
    """Return the key of a source file in the ConfigMap; a key cannot contain a path."""
    return f"code-{place}"


def pod(job: str, role: str, id: int, incarnation: str) -> str:
    """Return the name of the pod of a process; a repeated create finds the pod of the first one."""
    return f"{of_job(job)}-{role}-{id}-{incarnation}"


def master_host(job: str, namespace: str) -> str:
    """Return the DNS name of the master's Service, which stays the same when the master's pod
    changes."""
    return f"{master(job)}.{namespace}.svc"


def selector(job: str) -> str:
    """Return the label selector of all objects of a job."""
    return f"{JOB}={of_job(job)}"


def processes(job: str) -> str:
    """Return the label selector of the pods of a job, except for the master's."""
    return f"{selector(job)},{ROLE} in (worker,ps)"


def labels(
    job: str, role: str = "", id: int | None = None, incarnation: str = ""
) -> dict[str, str]:
    """Return the labels of an object of a job, with those of the process for a pod."""
    found = {
        "app.kubernetes.io/name": "torch-edl",
        "app.kubernetes.io/instance": of_job(job),
        "app.kubernetes.io/managed-by": "torch-edl",
        JOB: of_job(job),
    }
    if role:
        found["app.kubernetes.io/component"] = found[ROLE] = role
    if id is not None:
        found[ID] = str(id)
    if incarnation:
        found[INCARNATION] = incarnation
    return found


def owner(job: str, uid: str) -> dict[str, Any]:
    """Return the reference of an object to the Job of the master, with which it is deleted."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": master(job), "uid": uid}


def controller(job: str, uid: str) -> dict[str, Any]:
    """Return the reference of a pod to the ConfigMap with the files of the job, which is deleted
    with the Job.

    ``kubectl drain`` evicts only pods that have a controller. The Job cannot be the controller: it
    releases pods that lack its labels, and counts the others as its own.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": files(job),
        "uid": uid,
        "controller": True,
    }


def annotations_of(job: str) -> dict[str, str]:
    """Return the annotations of an object of a job: the job's name as the user wrote it."""
    return {JOB: job}
