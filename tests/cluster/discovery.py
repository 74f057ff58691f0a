"""What the server says of its API: the groups, and the resources of each, for ``kubectl``."""

from __future__ import annotations

from typing import Any

from tests.cluster.kinds import KINDS, Object

_VERBS = ["create", "delete", "get", "list", "patch", "watch"]
_EVICTION = {
    "name": "pods/eviction", "singularName": "", "namespaced": True, "group": "policy",
    "version": "v1", "kind": "Eviction", "verbs": ["create"],
}  # fmt: skip


def discover(path: str) -> Object | None:
    """The answer at a path; None if it is none of discovery."""
    versions = {(kind.group, kind.version) for kind in KINDS}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [_group(*each) for each in sorted(versions) if each[0]]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for group, version in versions:
        if path == (f"/apis/{group}/{version}" if group else f"/api/{version}"):
            return _resources(group, version)
    return None


def _group(group: str, version: str) -> Object:
    one = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [one], "preferredVersion": one}


def _resources(group: str, version: str) -> Object:
    found: list[dict[str, Any]] = [
        {"name": kind.plural, "singularName": kind.name.lower(), "kind": kind.name,
         "namespaced": kind.namespaced, "verbs": _VERBS}
        for kind in KINDS
        if (kind.group, kind.version) == (group, version)
    ]  # fmt: skip
    return {
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found if group else [*found, _EVICTION],
    }  # fmt: skip
