"""Makes the manifests of pods: the common ``spec``, and the pods of workers and servers. Pure.

A container runs as an unprivileged user with a read-only root. It may write to ``/tmp``, the shared
memory and the volumes of the job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch_edl.config.environment import (
    ENV_HOME,
    ENV_HOST,
    ENV_MASTER_AWAY,
    ENV_TOKEN,
)
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.names import Manifest
from torch_edl.plugins.kubernetes.objects import template
from torch_edl.plugins.kubernetes.pod_settings import LIMITS

USER = 1000
"""User id and group id of all containers, and the group of their volumes."""

# Seconds that a process needs to exit after its own grace period.
_AFTER_GRACE_S = 5
# Seconds without a master after which a process exits: the next master's pod may have to wait for a
# node and pull its image.
_MASTER_AWAY_S = 900
# Maximum number of nodes that a pod avoids: the nodes are listed in the pod, whose size is limited.
_MOST_AVOIDED = 20
# Taints of a node whose kubelet is silent, and the seconds that a pod stays on such a node.
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_AWAY_S = 30
_HOSTNAME = "kubernetes.io/hostname"
# Requests of pods for which the user names no resources, without limits. A node that is short of
# memory evicts pods without requests first, and the master and the servers hold the job.
_DEFAULT_REQUESTS = {
    "master": {"cpu": "100m", "memory": "256Mi"},
    "ps": {"cpu": "100m", "memory": "256Mi"},
}


def process_pod(
    job: str,
    config: KubernetesConfig,
    *,
    role: str,
    id: int,
    incarnation: str,
    command: Sequence[str],
    env: Mapping[str, str],
    grace_s: float,
    owner: Manifest | None,
    priority_class: str = "",
    avoid: Sequence[str] = (),
) -> Manifest:
    """Return a pod that is created for a process.

    Args:
        role: role of the process: ``worker`` or ``ps``.
        incarnation: incarnation of the job's state, see
            :data:`torch_edl.plugins.kubernetes.names.INCARNATION`.
        command: command line of the process.
        env: additional environment variables; no secrets.
        grace_s: seconds that the process has to exit after SIGTERM.
        priority_class: name of a PriorityClass; empty: the default of the cluster.
        owner: reference to the object with which the pod is deleted; None: nothing owns it.
        avoid: nodes on which the pod runs only if no other node has room.
    """
    metadata: Manifest = {
        "name": names.pod(job, role, id, incarnation),
        "labels": names.labels(job, role, id, incarnation),
        "annotations": names.annotations_of(job),
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    spec = pod_spec(
        job,
        config,
        role=role,
        command=command,
        env={
            ENV_HOME: f"{names.TMP}/torch-edl",
            ENV_MASTER_AWAY: str(_MASTER_AWAY_S),
            **env,
        },
        grace_s=grace_s,
        priority_class=priority_class,
    )
    if role == "ps":
        spec["topologySpreadConstraints"] = _spread(job, role)
    if avoid:
        spec["affinity"] = _away_from(avoid[:_MOST_AVOIDED])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return with_template(pod, config, role)


def pod_spec(
    job: str,
    config: KubernetesConfig,
    *,
    role: str,
    command: Sequence[str],
    env: Mapping[str, str],
    grace_s: float,
    priority_class: str = "",
    service_account: str = "",
    volumes: Sequence[Manifest] = (),
    mounts: Sequence[Manifest] = (),
) -> Manifest:
    """Return the ``spec`` of a pod of a job, including the master's.

    Args:
        service_account: account whose token the process receives; empty: no token.
        volumes: volumes in addition to those of the options.
        mounts: mounts of these additional volumes.
    """
    named, mounted = config.volumes
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(grace_s) + _AFTER_GRACE_S,
        "automountServiceAccountToken": bool(service_account),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": names.CONTAINER,
                "image": config.image,
                "command": list(command),
                "env": _variables(job, env),
                "resources": _resources(config.resources(role), _DEFAULT_REQUESTS.get(role, {})),
                # Puts the last lines of a failed process into the status of its pod.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "tmp", "mountPath": names.TMP},
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "files", "mountPath": names.FILES, "readOnly": True},
                    *mounts,
                    *mounted,
                ],
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            # Workers of a DataLoader send their batches through it; the default is 64 MB.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "files", "configMap": _files(job, config.code)},
            *volumes,
            *named,
        ],
    }
    if service_account:
        spec["serviceAccountName"] = service_account
    if priority_class:
        spec["priorityClassName"] = priority_class
    return spec


def with_template(pod: Manifest, config: KubernetesConfig, role: str) -> Manifest:
    """Return a pod with the user's templates, and with the tolerations that they leave out."""
    made = pod
    for each in config.templates(role):
        made = template.merge(made, each)
    own = made["spec"].get("tolerations") or []
    made["spec"]["tolerations"] = [*own, *_of_lost_nodes(own)]
    return made


def _variables(job: str, env: Mapping[str, str]) -> list[Manifest]:
    secret = {"name": names.token(job), "key": names.TOKEN_KEY}
    return [
        {"name": ENV_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": ENV_TOKEN, "valueFrom": {"secretKeyRef": secret}},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        # gRPC logs each failed handshake, which any client in the cluster can cause.
        {"name": "GRPC_VERBOSITY", "value": "ERROR"},
        # Libraries put their caches below HOME, and the root is read-only.
        {"name": "HOME", "value": names.TMP},
        *({"name": name, "value": value} for name, value in env.items()),
    ]


def _files(job: str, code: Sequence[str]) -> Manifest:
    """Return the ConfigMap as a volume with file paths, since keys cannot contain paths."""
    folder = names.CODE.removeprefix(f"{names.FILES}/")
    items = [{"key": names.CONFIG_KEY, "path": names.CONFIG_KEY}]
    for place, path in enumerate(code):
        items.append({"key": names.code_key(place), "path": f"{folder}/{path}"})
    return {"name": names.files(job), "items": items}


def _resources(wanted: Mapping[str, str], default: Mapping[str, str]) -> Manifest:
    """Return requests, and equal limits except for the CPU, unless a limit is given.

    A limit of the CPU would throttle a process that computes in bursts, even on an idle node.

    Args:
        default: requests of a pod for which the user names no resources.
    """
    if not wanted:
        return {"requests": dict(default)} if default else {}
    requests = {name: each for name, each in wanted.items() if not name.startswith(LIMITS)}
    limits = {name: each for name, each in requests.items() if name != "cpu"}
    for name, quantity in wanted.items():
        if name not in requests:
            limits[name.removeprefix(LIMITS)] = quantity
    found = {"requests": requests, "limits": limits}
    return {name: each for name, each in found.items() if each}


def _spread(job: str, role: str) -> list[Manifest]:
    """Return the constraint that spreads the pods of a role over nodes that have room: a server and
    the server with the copy of its shard are not to be lost together."""
    labels = {names.JOB: names.of_job(job), names.ROLE: role}
    return [
        {
            "maxSkew": 1,
            "topologyKey": _HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
    ]


def _of_lost_nodes(own: Sequence[Manifest]) -> list[Manifest]:
    """Return tolerations of 30 s for nodes that do not answer; the default is 5 minutes.

    Args:
        own: tolerations of the user; one without a key tolerates all taints.
    """
    keys = {each.get("key") for each in own}
    return [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _NODE_AWAY_S,
        }
        for key in _LOST
        if not keys & {key, None, ""}
    ]


def _away_from(nodes: Sequence[str]) -> Manifest:
    term = {"key": _HOSTNAME, "operator": "NotIn", "values": list(nodes)}
    # Preferred, not required: the only node that has room may be one of them.
    preference = {"weight": 100, "preference": {"matchExpressions": [term]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
