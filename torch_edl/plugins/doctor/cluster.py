"""Checks of a cluster of Kubernetes: the API server, the rights of the user, quotas and nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.plugins.doctor.finding import Finding, ok, problem, warning
from torch_edl.plugins.kubernetes.client import rights
from torch_edl.plugins.kubernetes.cluster.api import CORE, Api
from torch_edl.plugins.kubernetes.cluster.failures import (
    ClusterError,
    ForbiddenError,
    MissingError,
)

# Objects that the smallest job needs, by their names in a quota. `pods` counts pods that have not
# ended; `count/...` counts all objects.
_NEEDS = {
    "pods": 2,  # one for the master, one for a worker
    "count/pods": 2,
    "count/jobs.batch": 1,
    **dict.fromkeys(("services", "secrets", "configmaps"), 1),
    **dict.fromkeys(("count/services", "count/secrets", "count/configmaps"), 1),
    **dict.fromkeys(("count/serviceaccounts", "count/roles.rbac.authorization.k8s.io"), 1),
    "count/rolebindings.rbac.authorization.k8s.io": 1,
    "count/networkpolicies.networking.k8s.io": 1,
}
# Resources whose quota needs requests of all pods.
_COMPUTE = ("cpu", "memory")
_TERMINATING = "Terminating"
_GPU = "nvidia.com/gpu"
# A job runs without these rights, with the following effects.
_EFFECTS = {
    "pods/portforward": "without it, run shows no progress, and status, scale and stop fail",
    "pods/log": "without it, run and logs show no output of pods",
    "events": "without it, run cannot tell why pods are pending",
}
_INSTEAD = {
    "networkpolicies": "or add --no-network-policy",
    "serviceaccounts": "or name an account for the master with --service-account",
    "roles": "or name an account for the master with --service-account",
    "rolebindings": "or name an account for the master with --service-account",
}


def cluster(where: Mapping[str, str]) -> Iterator[Finding]:
    """Check the cluster of a context, and a namespace of it.

    Args:
        where: values of ``--context`` and ``--namespace``; empty: those of the kubeconfig.
    """
    try:
        api = Api.of_kubeconfig(context=where["context"], namespace=where["namespace"])
    except UsageError as error:
        text, _, fix = str(error).partition("; ")
        if not fix:  # the client is not installed
            text, _, fix = text.rpartition(": ")
        yield problem("cluster", text, fix)
        return
    with contextlib.closing(api):
        try:
            yield from _server(api)
            yield from _namespace(api)
            yield from _rights(api)
            yield from quotas(api)
            yield from _nodes(api)
        except ClusterError as error:
            fix = "choose another --context, or repair the connection until kubectl get pods works"
            yield problem("cluster", str(error), fix)


def _server(api: Api) -> Iterator[Finding]:
    began = time.perf_counter()
    version = str(api.read("/version").get("gitVersion", "unknown"))
    answer_s = time.perf_counter() - began
    text = f"Kubernetes {version}, answers in {answer_s * 1e3:.0f} ms"
    yield ok("cluster", text, version=version, answer_s=answer_s)


def _namespace(api: Api) -> Iterator[Finding]:
    try:
        found = api.read(f"{CORE}/namespaces/{{namespace}}")
    except ForbiddenError:  # users of one namespace cannot read it
        yield ok("namespace", api.namespace)
        return
    except MissingError:
        fix = f"kubectl create namespace {api.namespace}, or name another one with --namespace"
        yield problem("namespace", f"{api.namespace} does not exist", fix)
        return
    phase = str(found.get("status", {}).get("phase", "Active"))
    if phase != "Active":
        yield problem("namespace", f"{api.namespace} is {phase}", "name another --namespace")
    else:
        yield ok("namespace", api.namespace)


def _rights(api: Api) -> Iterator[Finding]:
    lacks = rights.missing(api)
    for resource, verbs in lacks.items():
        text = f"{', '.join(verbs)}: not allowed in namespace {api.namespace}"
        fix = f"ask for a Role, bound to your user, with the rule {rights.rule(resource, verbs)}"
        values = {"resource": resource, "verbs": verbs}
        if (resource, verbs) == ("configmaps", ["patch"]):
            effect = "without it, --durability replica needs --state-claim or --store"
            yield warning(resource, text, f"{fix}; {effect}", **values)
        elif resource in _EFFECTS:
            yield warning(resource, text, f"{fix}; {_EFFECTS[resource]}", **values)
        else:
            instead = _INSTEAD.get(resource, "")
            yield problem(resource, text, f"{fix}{instead and ', '}{instead}", **values)
    if not lacks:
        count = sum(map(len, rights.RUN.values()))
        yield ok("rights", f"all {count} rights that torch-edl run needs", count=count)


def quotas(api: Api) -> Iterator[Finding]:
    """Check the quotas of the namespace."""
    try:
        quotas = api.read(f"{CORE}/namespaces/{{namespace}}/resourcequotas").get("items") or ()
    except ForbiddenError:
        return
    for each in quotas:
        name, status = each["metadata"]["name"], each.get("status", {})
        hard, used = status.get("hard") or each["spec"].get("hard") or {}, status.get("used") or {}
        text = ", ".join(f"{key} {used.get(key, 0)} of {value}" for key, value in hard.items())
        check, values = f"quota {name}", {"hard": hard, "used": used}
        scopes = _scopes(each["spec"])
        if _TERMINATING in scopes:
            yield ok(check, f"{text}; not for pods of jobs, which have no deadline", **values)
            continue
        full = [
            key
            for key, need in _NEEDS.items()
            if key in hard and _number(hard[key]) - _number(used.get(key, 0)) < need
        ]
        only = f", for pods with {', '.join(scopes)} only" if scopes else ""
        if full:
            fix = f"no room in {', '.join(full)}{only}: remove pods or jobs (torch-edl clean), or "
            fix += "ask for a larger quota"
            yield (warning if scopes else problem)(check, text, fix, **values)
        elif lacks := [key for key in hard if key.startswith(("limits.", "requests.", *_COMPUTE))]:
            fix = f"the quota rejects pods without {', '.join(lacks)}{only}: add "
            fix += "--worker-resources, --ps-resources and --master-resources"
            fix += " with limits.cpu=" if "limits.cpu" in lacks else ""
            yield warning(check, text, fix, **values)
        else:
            yield ok(check, text or "no limits", **values)


def _scopes(spec: Mapping[str, Any]) -> list[str]:
    """Return the scopes of a quota as text; empty if the quota holds for all pods."""
    found = list(map(str, spec.get("scopes") or ()))
    for term in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        values = ", ".join(term.get("values") or ())
        exists = term.get("operator") == "Exists"
        name = str(term["scopeName"])
        found.append(name if exists else f"{name} {term.get('operator')} ({values})")
    # The pods of a job have no deadline: they are all of this scope.
    return [each for each in found if each != "NotTerminating"]


def _nodes(api: Api) -> Iterator[Finding]:
    try:
        nodes = api.read(f"{CORE}/nodes").get("items") or []
    except ForbiddenError:  # users of one namespace see no nodes
        yield ok("nodes", "not visible to this user")
        return
    ready = [each for each in nodes if _is_ready(each)]
    offers = [each["status"].get("allocatable", {}) for each in ready]
    cores = sum(_number(each.get("cpu", 0)) for each in offers)
    gpus = round(sum(_number(each.get(_GPU, 0)) for each in offers))
    text = f"{len(ready):,} of {len(nodes):,} are ready, with {cores:,.0f} cores"
    text += f" and {gpus:,} GPUs" if gpus else ""
    values = {"ready": len(ready), "all": len(nodes), "cores": cores, "gpus": gpus}
    if ready:
        yield ok("nodes", text, **values)
    else:
        yield problem("nodes", text, "start nodes, or uncordon them: kubectl get nodes", **values)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    states = {each["type"]: each["status"] for each in conditions}
    return states.get("Ready") == "True" and not node.get("spec", {}).get("unschedulable")


def _number(quantity: object) -> float:
    """Return a quantity of Kubernetes, such as ``4`` or ``3920m``, as a number."""
    from kubernetes.utils.quantity import parse_quantity  # an extra

    return float(parse_quantity(quantity))  # type: ignore[no-untyped-call]
