"""What the server fills in where a manifest says nothing."""

from __future__ import annotations

import base64
from typing import Any

from tests.cluster.kinds import JOBS, PODS, SECRETS, SERVICES, Kind, Object


def set_defaults(kind: Kind, thing: Object) -> None:
    """Changes ``thing``."""
    if kind is PODS:
        _pod(thing["spec"])
        thing["spec"].setdefault("serviceAccountName", "default")
        _tolerate_short_losses(thing["spec"])
        thing.setdefault("status", {})["phase"] = "Pending"
        thing["status"]["qosClass"] = "Burstable"
    elif kind is JOBS:
        spec = thing["spec"]
        for field, value in (("parallelism", 1), ("completions", 1), ("backoffLimit", 6)):
            spec.setdefault(field, value)
        spec.setdefault("completionMode", "NonIndexed")
        spec.setdefault("suspend", False)
        # A policy of failures may not be mixed with the replacement of pods that still end.
        replaced = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
        spec.setdefault("podReplacementPolicy", replaced)
        _pod(spec["template"]["spec"])
    elif kind is SERVICES:
        spec = thing.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    elif kind is SECRETS:
        thing.setdefault("type", "Opaque")
        for key, value in (thing.pop("stringData", None) or {}).items():
            thing.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def _pod(spec: Object) -> None:
    values: dict[str, Any] = {
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "enableServiceLinks": True,
        "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler",
        "securityContext": {},
    }  # fmt: skip
    for field, value in values.items():
        spec.setdefault(field, value)
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or []:
            latest = container["image"].endswith(":latest") or ":" not in container["image"]
            container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            resources = container.setdefault("resources", {})
            for name, amount in (resources.get("limits") or {}).items():
                resources.setdefault("requests", {}).setdefault(name, amount)


def _tolerate_short_losses(spec: Object) -> None:
    """As the admission plugin DefaultTolerationSeconds: a pod leaves a node that is lost only
    after five minutes, unless the pod says something else."""
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(toleration.get("key") in (key, None, "") for toleration in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
