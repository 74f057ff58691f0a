"""The rights that a user of ``torch-edl run`` needs in a namespace, as ``docs/kubernetes.md`` lists
them."""

from __future__ import annotations

from collections.abc import Mapping

from torch_edl.plugins.kubernetes.cluster.api import CORE, KINDS, Api

RUN: Mapping[str, tuple[str, ...]] = {
    "jobs": ("create", "get", "list", "patch", "delete"),
    "secrets": ("create", "get"),
    "configmaps": ("create", "get", "patch"),
    "services": ("create",),
    "networkpolicies": ("create",),
    "serviceaccounts": ("create",),
    "roles": ("create",),
    "rolebindings": ("create",),
    "pods": ("create", "delete", "list", "watch"),
    "pods/portforward": ("get", "create"),
    "pods/log": ("get",),
    "events": ("list",),
}
"""Verbs by resource, with those that the client grants to the master."""

_GROUPS = {
    plural: "" if path == CORE else path.removeprefix("/apis/").rpartition("/")[0]
    for path, plural in KINDS.values()
}


def missing(api: Api) -> dict[str, list[str]]:
    """Return the rights of :data:`RUN` that the user lacks: verbs by resource.

    Raises:
        ClusterError: the server does not answer.
    """
    found: dict[str, list[str]] = {}
    for resource, verbs in RUN.items():
        for verb in verbs:
            if not api.may(verb, _group(resource), resource):
                found.setdefault(resource, []).append(verb)
    return found


def rule(resource: str, verbs: list[str]) -> str:
    """Return the rule of a Role that grants verbs on a resource, as YAML."""
    listed = ", ".join(f'"{verb}"' for verb in verbs)
    return f'{{apiGroups: ["{_group(resource)}"], resources: ["{resource}"], verbs: [{listed}]}}'


def _group(resource: str) -> str:
    return _GROUPS[resource.partition("/")[0]]
