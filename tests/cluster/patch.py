"""The three formats of a patch: JSON Patch, JSON Merge Patch, and strategic merge."""

from __future__ import annotations

import copy
from typing import Any

from tests.cluster.refused import Refused

# The lists that strategic merge merges by a key, from `x-kubernetes-patch-merge-key` of the schema;
# the client's models do not carry these marks. All other lists are replaced whole.
_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
    "volumeMounts": "mountPath", "imagePullSecrets": "name", "ownerReferences": "uid",
    "conditions": "type", "hostAliases": "ip", "containerStatuses": "name", "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
}  # fmt: skip
_PORTS = ("containerPort", "port")


def apply_patch(content_type: str, patch: Any, thing: dict[str, Any]) -> dict[str, Any]:
    """The object as the patch leaves it."""
    if content_type == "application/json-patch+json":
        if not isinstance(patch, list):
            raise Refused(400, "json: cannot unmarshal object into Go value of type []jsonPatchOp")
        return _json_patch(patch, thing)
    if not isinstance(patch, dict):
        raise Refused(400, "a merge patch must be an object")
    if content_type == "application/merge-patch+json":
        merged = _merge(thing, patch)
    elif content_type == "application/strategic-merge-patch+json":
        merged = _strategic(thing, patch)
    else:
        raise Refused(
            415, f"the body of the request was in an unknown format - {content_type!r}: accepted "
            "are json-patch, merge-patch and strategic-merge-patch",
        )  # fmt: skip
    return merged


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _strategic(target: Any, patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        old = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _strategic(old, value)
        elif isinstance(value, list) and (by := _merge_key(key, value)) and isinstance(old, list):
            merged[key] = _merge_list(old, value, by)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_key(field: str, values: list[Any]) -> str | None:
    if not values or not all(isinstance(value, dict) for value in values):
        return None
    if field == "ports":
        return next((name for name in _PORTS if all(name in value for value in values)), None)
    by = _MERGE_KEYS.get(field)
    return by if by and all(by in value for value in values) else None


def _merge_list(old: list[Any], values: list[Any], by: str) -> list[Any]:
    merged = {item.get(by): item for item in old}
    for value in values:
        if value.get("$patch") == "delete":
            merged.pop(value[by], None)
        else:
            merged[value[by]] = _strategic(merged.get(value[by], {}), value)
    return list(merged.values())


def _json_patch(operations: list[Any], thing: dict[str, Any]) -> dict[str, Any]:
    whole = {"": copy.deepcopy(thing)}
    for operation in operations:
        try:
            _apply(whole, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise Refused(422, f"the server rejected our request: {operation}: {error!r}") from None
    return whole[""]


def _apply(whole: dict[str, Any], operation: dict[str, Any]) -> None:
    place: Any = whole
    *path, last = (
        word.replace("~1", "/").replace("~0", "~") for word in operation["path"].split("/")
    )
    for word in path:
        place = place[int(word)] if isinstance(place, list) else place[word]
    verb = operation["op"]
    key: Any = last
    if isinstance(place, list) and last != "-":
        key = int(last)
    if verb == "test":
        if place[key] != operation["value"]:
            raise ValueError(f"the value is {place[key]!r}")
    elif verb == "remove":
        del place[key]
    elif verb == "replace":
        place[key]
        place[key] = operation["value"]
    elif verb == "add":
        if not isinstance(place, list):
            place[key] = operation["value"]
        elif key == "-":
            place.append(operation["value"])
        else:
            place.insert(key, operation["value"])
    else:
        raise ValueError("of the operations only add, replace, remove and test are known here")
