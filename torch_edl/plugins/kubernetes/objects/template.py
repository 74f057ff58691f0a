"""The user's pod template, merged into the pods of a job by the rules of strategic merge.

The rules are those of ``kubectl patch``: mappings are merged, null removes a key, and a list is
replaced as a whole, unless its elements have a merge key; then elements with equal keys are merged,
and others appended. Directives: ``$patch: replace|delete|merge``, ``$retainKeys`` and
``$deleteFromPrimitiveList/FIELD``.
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md

Pure, but for :func:`load`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch_edl.config.environment import read_yaml
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import names

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "evictionResponders": "name",
    "ownerReferences": "uid",
}
"""Lists of a pod that are merged by element, with the key of an element, as in the schema of the
API (``x-kubernetes-patch-merge-key``). All other lists, such as tolerations, are replaced."""
MERGED_VALUES = ("finalizers",)
"""Lists of plain values that are merged as sets."""

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList/"
# Fields that the job sets and a template must not change.
_OURS = {
    "metadata": ("name", "generateName", "namespace", "ownerReferences"),
    "spec": ("restartPolicy", "serviceAccountName", "hostname", "subdomain"),
    "main": ("command", "args", "stdin"),
}


def load(path: str, *, option: str = "--pod-template") -> dict[str, Any]:
    """Read a template from a file: ``metadata`` and ``spec`` of a pod.

    Raises:
        UsageError: the file cannot be read, is not the YAML of a pod, or sets a field of the job.
    """
    found = read_yaml(path, option=option, content="a pod")
    try:
        return check(found, f"{option} {path}")
    except RecursionError as error:
        raise UsageError(f"{option} {path}: a part of it holds itself; write a pod") from error


def check(found: Any, where: str) -> dict[str, Any]:
    """Return the template without ``apiVersion`` and ``kind``.

    Raises:
        UsageError: the value is no pod, or sets a field of the job.
    """
    if not isinstance(found, dict) or not {"metadata", "spec"} & set(found):
        raise UsageError(f"{where}: no pod; write metadata: and spec:, as in a Pod")
    if found.get("kind", "Pod") not in ("Pod", "PodTemplate"):
        raise UsageError(f"{where}: kind: {found['kind']}: write the YAML of a Pod")
    for key in found:
        if key not in ("apiVersion", "kind", "metadata", "spec"):
            raise UsageError(f"{where}: {key}: unknown; write metadata: and spec:, as in a Pod")
    made = {key: found[key] for key in ("metadata", "spec") if found.get(key) is not None}
    _check_mappings(made, where)
    _check_ours(made, where)
    try:
        merge({}, made)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return made


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` merged with ``patch``. Merging the same patch again changes nothing.

    Raises:
        UsageError: an unknown directive, or an element of a list without its key.
    """
    merged = _merge_mapping(base, patch)
    return {} if merged is None else merged


def _merge_mapping(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merged mapping; None if the patch deletes it."""
    how = patch.get(_PATCH, "merge")
    if how not in ("merge", "replace", "delete"):
        raise UsageError(f"{_PATCH}: {how}: write replace, delete or merge")
    if how == "delete":
        return None
    made = {} if how == "replace" else {key: copy.deepcopy(value) for key, value in base.items()}
    retained = patch.get(_RETAIN)
    if retained is not None:
        if not isinstance(retained, list):
            raise UsageError(f"{_RETAIN}: {retained!r}: write a list of keys")
        made = {key: value for key, value in made.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            gone = value if isinstance(value, list) else [value]
            field = key.removeprefix(_DELETE_FROM)
            stays = patch.get(field)  # values that the patch also sets keep their place
            stays = stays if isinstance(stays, list) else []
            if isinstance(made.get(field), list):
                made[field] = [each for each in made[field] if each in stays or each not in gone]
        elif key.startswith("$") and key not in (_PATCH, _RETAIN):
            raise UsageError(f"{key}: an unknown directive; leave it out")
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        merged = _merge_value(key, made.get(key), value)
        if merged is None:
            made.pop(key, None)
        else:
            made[key] = merged
    return made


def _merge_value(key: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, Mapping):
        return _merge_mapping(base if isinstance(base, Mapping) else {}, patch)
    if not isinstance(patch, list):
        return patch
    had = base if isinstance(base, list) else []
    if key in MERGE_KEYS:
        return _merge_elements(key, had, patch)
    if key in MERGED_VALUES:
        return had + [each for each in dict.fromkeys(patch) if each not in had]
    return _without_null(patch)


def _merge_elements(field: str, base: list[Any], patch: list[Any]) -> list[Any]:
    """Return the elements merged by key, in the order of the base, followed by new ones."""
    name = MERGE_KEYS[field]
    for each in patch:
        if not isinstance(each, Mapping):
            raise UsageError(f"{field}: {each!r}: write mappings, each with {name}:")
    if {_PATCH: "replace"} in patch:
        base, patch = [], [each for each in patch if each != {_PATCH: "replace"}]
    made: dict[Any, dict[str, Any]] = {each[name]: copy.deepcopy(each) for each in base}
    for each in patch:
        key = each.get(name)
        if not isinstance(key, (str, int)):
            raise UsageError(f"{field}: an element has no {name}; write one")
        merged = _merge_mapping(made.get(key, {}), each)
        if merged is None:
            made.pop(key, None)
        else:
            # After the directive `replace`, only the patch and the key remain.
            made[key] = {**merged, name: key}
    return list(made.values())


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_null(each) for each in value]
    return value


def _check_mappings(value: Any, where: str, key: str = "") -> None:
    """Raise UsageError unless the template has an equal form in JSON: no dates, keys are text."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not isinstance(name, str):
                raise UsageError(f"{where}: {key}: the key {name!r} is no text; quote it")
            _check_mappings(each, where, name)
    elif isinstance(value, list):
        for each in value:
            _check_mappings(each, where, key)
    elif not isinstance(value, (str, int, float, type(None))):
        raise UsageError(f"{where}: {key}: {value}: quote it, so that YAML reads a text")
    elif value != value or value in (float("inf"), float("-inf")):
        raise UsageError(f"{where}: {key}: {value}: no number that JSON knows")


def _check_ours(made: Mapping[str, Any], where: str) -> None:
    for part, value in made.items():
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}: {part}: write a mapping, as in a Pod")
        for key in _OURS[part]:
            if key in value:
                raise UsageError(f"{where}: {part}.{key}: the job sets it; leave it out")
    labels = made.get("metadata", {}).get("labels") or {}
    for label in labels if isinstance(labels, Mapping) else ():
        if label.startswith((f"{names.DOMAIN}/", "app.kubernetes.io/")):
            raise UsageError(f"{where}: metadata.labels.{label}: the job sets it; leave it out")
    containers = made.get("spec", {}).get("containers") or ()
    for each in containers if isinstance(containers, list) else ():
        if isinstance(each, Mapping) and _PATCH not in each:
            _check_container(each, where)


def _check_container(container: Mapping[str, Any], where: str) -> None:
    name = container.get("name")
    if name != names.CONTAINER:
        raise UsageError(
            f"{where}: spec.containers: {name}: a container beside {names.CONTAINER} keeps a pod "
            f"from ending; name it {names.CONTAINER} to change the container of the job, or make "
            "it an initContainer with restartPolicy: Always"
        )
    for key in _OURS["main"]:
        if key in container:
            raise UsageError(f"{where}: {name}.{key}: the job sets it; leave it out")
    env = container.get("env") or ()
    for each in env if isinstance(env, list) else ():
        named = each.get("name") if isinstance(each, Mapping) else None
        if isinstance(named, str) and named.startswith("TORCH_EDL_"):
            raise UsageError(f"{where}: env {named}: the job sets it; leave it out")
