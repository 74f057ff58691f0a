"""The kinds of objects that the server keeps, where the API has them, and what a client such
as kubectl is told about them first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind.

    Args:
        group: of the API; empty for the core.
        version: of the group.
        plural: the word in the path.
        name: the value of ``kind``.
        namespaced: it lives in a namespace.
        has_status: ``status`` is written by its controllers only.
        returns_deleted: an answer to its deletion is the object, and not a Status.
    """

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    has_status: bool = False
    returns_deleted: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def model(self) -> str:
        """The class of the official client."""
        prefix = "CoreV1" if self.plural == "events" else self.version.upper()
        return f"{prefix}{self.name}"


NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False, has_status=True)
NODES = Kind("", "v1", "nodes", "Node", namespaced=False, has_status=True)
PODS = Kind("", "v1", "pods", "Pod", has_status=True, returns_deleted=True)
SERVICES = Kind("", "v1", "services", "Service", has_status=True, returns_deleted=True)
SECRETS = Kind("", "v1", "secrets", "Secret")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", returns_deleted=True)
EVENTS = Kind("", "v1", "events", "Event")
CLAIMS = Kind(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim",
    has_status=True, returns_deleted=True,
)  # fmt: skip
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota", has_status=True, returns_deleted=True)
LIMIT_RANGES = Kind("", "v1", "limitranges", "LimitRange")
JOBS = Kind("batch", "v1", "jobs", "Job", has_status=True)
ROLES = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
NETWORK_POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", has_status=True)
PRIORITY_CLASSES = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)

KINDS = (
    NAMESPACES, NODES, PODS, SERVICES, SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, EVENTS, CLAIMS,
    QUOTAS, LIMIT_RANGES, JOBS, ROLES, ROLE_BINDINGS, NETWORK_POLICIES, LEASES, BUDGETS,
    PRIORITY_CLASSES,
)  # fmt: skip

_BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}


def find_kind(group: str, version: str, plural: str) -> Kind | None:
    """The kind of a path."""
    return _BY_PATH.get((group, version, plural))


def name_of(thing: Object) -> str:
    """``metadata.name``."""
    return str(thing["metadata"]["name"])


def namespace_of(thing: Object) -> str:
    """``metadata.namespace``; empty for what lives in none."""
    return str(thing["metadata"].get("namespace", ""))


_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES = {"pods": {"log": "Pod", "portforward": "PodPortForwardOptions",
                          "eviction": "Eviction"}}  # fmt: skip
_GROUPS = sorted({(kind.group, kind.version) for kind in KINDS if kind.group})


def discover(path: str) -> Object | None:
    """The answer to a path of discovery; None for any other path."""
    path = path.rstrip("/")
    if path in ("/healthz", "/livez", "/readyz"):
        return {"status": "ok"}
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        groups = [_group(group, version) for group, version in _GROUPS]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for group, version in [("", "v1"), *_GROUPS]:
        if path == (f"/apis/{group}/{version}" if group else "/api/v1"):
            found = [kind for kind in KINDS if kind.group == group]
            return {
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": path[5:].lstrip("/"),
                "resources": [resource for kind in found for resource in _resources(kind)],
            }  # fmt: skip
        if group and path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, version)}
    return None


def _group(group: str, version: str) -> Object:
    one = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [one], "preferredVersion": one}


def _resources(kind: Kind) -> list[Object]:
    whole = {
        "name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced,
        "kind": kind.name, "verbs": _VERBS,
    }  # fmt: skip
    subs = dict(_SUBRESOURCES.get(kind.plural, {}))
    if kind.has_status:
        subs["status"] = kind.name
    return [whole, *(
        {"name": f"{kind.plural}/{sub}", "singularName": "", "namespaced": kind.namespaced,
         "kind": name, "verbs": ["create", "get", "patch", "update"]}
        for sub, name in subs.items()
    )]  # fmt: skip
