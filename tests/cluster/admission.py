"""Admission: the defaults of a new object, and the checks after its form was found right: quotas,
LimitRanges, priorities."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from tests.cluster.kinds import (
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
    Object,
    Refused,
    name_of,
    namespace_of,
    not_found,
    parse_quantity,
    write_quantity,
)
from tests.cluster.store import Store


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
        assert "podFailurePolicy" not in spec, "not known here"
        spec.setdefault("completionMode", "NonIndexed")
        for field in ("parallelism", "completions"):
            assert spec.setdefault(field, 1) == 1, f"not known here: {field}"
        spec.setdefault("backoffLimit", 6)
        spec.setdefault("suspend", False)
        spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
        _pod(spec["template"]["spec"])
    elif kind is SERVICES:
        spec = thing["spec"]
        assert spec["clusterIP"] == "None", "there is no proxy here"
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
    for container in spec["containers"]:
        latest = container["image"].endswith(":latest") or ":" not in container["image"]
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        for name, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)


def _tolerate_short_losses(spec: Object) -> None:
    """Do what the admission plugin DefaultTolerationSeconds does: a pod leaves a lost node only
    after five minutes, unless the pod says something else."""
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(toleration.get("key") in (key, None, "") for toleration in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )


def admit(store: Store, kind: Kind, thing: Object) -> None:
    """Completes a new object, or raises Refused 403 or 404."""
    if kind.namespaced and store.find(NAMESPACES, "", namespace_of(thing)) is None:
        raise not_found("namespaces", "", namespace_of(thing))
    if kind is PODS:
        account = thing["spec"]["serviceAccountName"]
        if store.find(SERVICE_ACCOUNTS, namespace_of(thing), account) is None:
            raise _forbidden(
                kind, thing, f"error looking up service account {namespace_of(thing)}/{account}: "
                f'serviceaccount "{account}" not found',
            )  # fmt: skip
        _set_priority(store, kind, thing)
        if problems := list(problems_of(store, namespace_of(thing), thing["spec"])):
            text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise _forbidden(kind, thing, text)
        _check_quotas(store, thing)


def _forbidden(kind: Kind, thing: Object, why: str) -> Refused:
    details = {"name": name_of(thing), "kind": kind.plural, "group": kind.group}
    full = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    return Refused(403, f'{full} "{name_of(thing)}" is forbidden: {why}', details=details)


def _set_priority(store: Store, kind: Kind, pod: Object) -> None:
    spec = pod["spec"]
    spec["priority"] = 0
    if name := spec.get("priorityClassName", ""):
        found = store.find(PRIORITY_CLASSES, "", name)
        if found is None:
            raise _forbidden(kind, pod, f"no PriorityClass with name {name} was found")
        spec["priority"] = found["value"]


def _check_quotas(store: Store, pod: Object) -> None:
    namespace = namespace_of(pod)
    pods = store.list(PODS, namespace)
    going = [other for other in pods if other["status"]["phase"] not in ("Succeeded", "Failed")]
    for quota in store.list(QUOTAS, namespace):
        assert quota["spec"].keys() == {"hard"}, f"not known here: {quota['spec']}"
        for name, most in quota["spec"]["hard"].items():
            used = len({"pods": going, "count/pods": pods}[name])
            if used >= int(most):
                said = f"requested: {name}=1, used: {name}={used}, limited: {name}={most}"
                raise _forbidden(PODS, pod, f"exceeded quota: {name_of(quota)}, {said}")


def set_limits(store: Store, namespace: str, spec: Object) -> None:
    """Completes the spec of a pod, as the API server does before it looks at the form."""
    for most in _most_of_containers(store, namespace):
        for container in spec.get("containers", []):
            own = container.setdefault("resources", {})
            own["limits"] = {**most, **(own.get("limits") or {})}


def problems_of(store: Store, namespace: str, spec: Object) -> Iterator[str]:
    """Why the pod is refused."""
    for most in _most_of_containers(store, namespace):
        for container in spec["containers"]:
            for name, text in most.items():
                limit = parse_quantity(container["resources"]["limits"][name])
                if limit > parse_quantity(text):
                    said = f"maximum {name} usage per Container is {text}"
                    yield f"{said}, but limit is {write_quantity(limit)}"


def _most_of_containers(store: Store, namespace: str) -> Iterator[Object]:
    """The largest amounts of resources that LimitRanges allow a container."""
    for limit_range in store.list(LIMIT_RANGES, namespace):
        for item in limit_range["spec"]["limits"]:
            assert item.keys() == {"type", "max"}, f"not known here: {item}"
            assert item["type"] == "Container", f"not known here: {item}"
            yield item["max"]
