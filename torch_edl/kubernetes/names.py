"""Names, labels and paths that all objects of a job share. Pure.

Every object of a job is named after the job, so that a user finds it, and carries the labels that
Kubernetes recommends, so that any machine with the kubeconfig finds it.
"""

from __future__ import annotations

import hashlib
import re
import secrets

DOMAIN = "torch-edl.dev"
JOB = f"{DOMAIN}/job"
ROLE = f"{DOMAIN}/role"
ID = f"{DOMAIN}/id"
SHARED = f"{DOMAIN}/shared"
"""A pod of several workers: each line of its log begins with the name of the worker."""
INCARNATION = f"{DOMAIN}/incarnation"
"""Of the job's state: a master that has lost the state begins another one, and the pods of an
earlier one are no processes of its."""

STATUS = f"{DOMAIN}/status"
"""The annotation of the master's Job that says how the job ended."""
ADOPTS = f"{DOMAIN}/adopts"
"""The annotation of a Job whose objects a user has applied: its master becomes their owner."""

MASTER_PORT = 29400
"""Where the master listens at the address of its pod."""
CONTAINER = "main"
"""The container of a pod in which the process of the job runs."""
TOKEN_KEY = "token"
"""The key of the job's token in its Secret."""
CONFIG_KEY = "job.json"
"""The key of the job's configuration in its ConfigMap."""

FILES = "/etc/torch-edl"
"""Where the ConfigMap of a job is mounted in all pods."""
CODE = f"{FILES}/code"
"""The folder of the model file and of the modules that were sent with it."""
HOME = "/var/lib/torch-edl"
"""The folder of the master for its jobs: on a claim, if the job has one for its state."""
TMP = "/tmp"
"""What a pod may write, besides its volumes; gone with the pod."""

# An object's name has 63 characters at most, and behind that of the job stands, for a pod, its
# role, number and incarnation: "-worker-1234567-abcdef".
_JOB_CHARS = 40
_HASH_CHARS = 6


def of_job(job: str) -> str:
    """The name of a job as objects carry it: a DNS label. Different jobs have different names."""
    plain = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    if plain == job and len(plain) <= _JOB_CHARS and plain[0].isalpha():
        return plain
    digest = hashlib.sha256(job.encode()).hexdigest()[:_HASH_CHARS]
    stem = plain if plain[:1].isalpha() else f"job-{plain}"
    return f"{stem[: _JOB_CHARS - _HASH_CHARS - 1].rstrip('-')}-{digest}"


def master(job: str) -> str:
    """The master's Job, its Service, its ServiceAccount, Role and RoleBinding."""
    return f"{of_job(job)}-master"


def token(job: str) -> str:
    """The Secret with the token of a job."""
    return f"{of_job(job)}-token"


def files(job: str) -> str:
    """The ConfigMap with the configuration and the code of a job."""
    return f"{of_job(job)}-files"


def belongings(job: str) -> list[tuple[str, str]]:
    """The kinds and names of the objects that belong to the master's Job, but for pods."""
    own = ("Service", "ServiceAccount", "Role", "RoleBinding")
    return [
        ("Secret", token(job)),
        ("ConfigMap", files(job)),
        ("NetworkPolicy", of_job(job)),
        *((kind, master(job)) for kind in own),
    ]


def next_master_pod(name: str) -> str:
    """A new name of a pod of the master's Job."""
    return f"{name}-{secrets.token_hex(3)}"


def code_key(place: int) -> str:
    """The key of a file of the code in the ConfigMap: a path is none."""
    return f"code-{place}"


def pod(job: str, role: str, id: int, incarnation: str) -> str:
    """The pod of a process. A create that is repeated meets the pod that the first one made."""
    return f"{of_job(job)}-{role}-{id}-{incarnation}"


def master_host(job: str, namespace: str) -> str:
    """The name of the master's Service, which stays when another pod becomes the master."""
    return f"{master(job)}.{namespace}.svc"


def selector(job: str) -> str:
    """Selects all objects of a job."""
    return f"{JOB}={of_job(job)}"


def labels(
    job: str, role: str = "", id: int | None = None, incarnation: str = ""
) -> dict[str, str]:
    """The labels of an object of a job; of a pod, those of its process too."""
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


def annotations_of(job: str) -> dict[str, str]:
    """The annotations of an object of a job: its name as the user wrote it."""
    return {JOB: job}
