"""What a client such as kubectl asks first: which groups, versions and kinds there are."""

from __future__ import annotations

from tests.cluster.kinds import KINDS, Kind, Object

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
