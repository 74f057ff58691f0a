"""What ``kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`` does, without ``--force``:
the filters of kubectl 1.36 (``k8s.io/kubectl/pkg/drain/filters.go``), then evictions."""

from __future__ import annotations

import time
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

_DAEMON_SET = "DaemonSet"
_UNMANAGED = "cannot delete Pods that declare no controller (use --force to override)"
_AGAIN_S = 0.2
_LOST, _TOO_MANY = 404, 429


def drain(core: client.CoreV1Api, node: str, *, timeout_s: float) -> str:
    """Empties a node. Returns why kubectl refuses to begin; empty once no pod is left.

    Raises:
        TimeoutError: pods are left; the message is the last answer to an eviction.
    """
    core.patch_node(node, {"spec": {"unschedulable": True}})
    pods = core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}").items
    pods = [pod for pod in pods if not _is_of_daemon_set(pod)]
    if refused := [pod.metadata.name for pod in pods if not _has_ended(pod) and not _owner(pod)]:
        return f"{_UNMANAGED}: {', '.join(refused)}"
    deadline, said = time.monotonic() + timeout_s, ""
    left = {pod.metadata.uid: (pod.metadata.namespace, pod.metadata.name) for pod in pods}
    while left:
        for uid, (namespace, name) in list(left.items()):
            try:
                if core.read_namespaced_pod(name, namespace).metadata.uid != uid:
                    del left[uid]
                else:
                    body = {"metadata": {"name": name}}
                    core.create_namespaced_pod_eviction(name, namespace, body)
            except ApiException as error:
                if error.status == _LOST:
                    del left[uid]
                elif error.status != _TOO_MANY:
                    raise
                said = str(error.body)
        if left and time.monotonic() > deadline:
            raise TimeoutError(f"{sorted(left.values())}: {said}")
        time.sleep(_AGAIN_S)
    return ""


def uncordon(core: client.CoreV1Api, node: str) -> None:
    core.patch_node(node, {"spec": {"unschedulable": None}})


def _owner(pod: Any) -> Any:
    """The controller: ``metav1.GetControllerOf``."""
    owners = pod.metadata.owner_references or []
    return next((owner for owner in owners if owner.controller), None)


def _is_of_daemon_set(pod: Any) -> bool:
    owner = _owner(pod)
    return owner is not None and owner.kind == _DAEMON_SET


def _has_ended(pod: Any) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")
