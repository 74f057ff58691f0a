"""The form of a manifest: its schema, and what the schema cannot say (forms of names, references,
what may be combined).

The classes of the official client, which was generated from the OpenAPI schema, name every field,
its type, and whether it is required. The server decodes strictly, as ``kubectl`` asks for by
default: an unknown field is an error. A validator of JSON Schema says the same, but takes 30 ms for
each pod.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from kubernetes.client import models

from tests.cluster.kinds import (
    CONFIG_MAPS,
    JOBS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICES,
    Kind,
    Object,
    Refused,
    invalid,
    parse_quantity,
)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_KEY = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ENV = re.compile(r"[ -<>-~]+")
_MAX_DATA = 1024 * 1024
_MAX_ANNOTATIONS = 256 * 1024

Problems = Iterator[tuple[str, str]]


def check_object(kind: Kind, thing: Object) -> None:
    """Raises Refused 422 with the first problem."""
    checks = {
        PODS: lambda: _pod(thing["spec"], "spec"), JOBS: lambda: _job(thing["spec"]),
        CONFIG_MAPS: lambda: _data(thing), SECRETS: lambda: _data(thing),
        ROLES: lambda: _role(thing),
    }  # fmt: skip
    for field, problem in _metadata(kind, thing["metadata"]):
        raise invalid(kind.name, str(thing["metadata"].get("name")), field, problem)
    for field, problem in checks[kind]() if kind in checks else ():
        raise invalid(kind.name, str(thing["metadata"].get("name")), field, problem)


def _metadata(kind: Kind, metadata: Object) -> Problems:
    name = metadata.get("name") or ""
    if not name:
        yield "metadata.name", "Required value: name or generateName is required"
    if kind is SERVICES:
        if not _SERVICE_NAME.fullmatch(name) or len(name) > 63:
            yield "metadata.name", f'Invalid value: "{name}": a DNS-1035 label must consist of ...'
    elif kind in (ROLES, ROLE_BINDINGS):
        if "/" in name or "%" in name:
            yield "metadata.name", f'Invalid value: "{name}": may not contain "/" or "%"'
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        yield "metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must ...'
    if kind is JOBS and len(name) > 63:  # It is the value of a label of the pods.
        yield "spec.template.labels", f'Invalid value: "{name}": must be no more than 63 bytes'
    yield from _labels(metadata.get("labels") or {}, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _key(key, "metadata.annotations")
    if sum(len(k) + len(v) for k, v in annotations.items()) > _MAX_ANNOTATIONS:
        yield "metadata.annotations", f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes"
    for owner in metadata.get("ownerReferences") or []:
        if not all(owner.get(word) for word in ("apiVersion", "kind", "name", "uid")):
            yield "metadata.ownerReferences", "Invalid value: a part of the reference is empty"


def _key(key: str, field: str) -> Problems:
    prefix, _, name = key.rpartition("/")
    if not _KEY.fullmatch(name) or len(name) > 63:
        yield field, f'Invalid value: "{key}": name part must consist of alphanumeric characters'
    if prefix and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        yield field, f'Invalid value: "{key}": prefix part must be a DNS subdomain'


def _labels(labels: Object, field: str) -> Problems:
    for key, value in labels.items():
        yield from _key(key, field)
        if not _VALUE.fullmatch(value):
            yield field, f'Invalid value: "{value}": a valid label must be an empty string or ...'
        if len(value) > 63:
            yield field, f'Invalid value: "{value}": must be no more than 63 bytes'


def _data(thing: Object) -> Problems:
    size = 0
    for field in ("data", "binaryData", "stringData"):
        for key, value in (thing.get(field) or {}).items():
            if not _DATA_KEY.fullmatch(key) or len(key) > 253:
                yield f"{field}[{key}]", f'Invalid value: "{key}": a valid config key must ...'
            encoded = field == "binaryData" or (field == "data" and thing["kind"] == "Secret")
            try:
                size += len(base64.b64decode(value, validate=True) if encoded else value.encode())
            except binascii.Error:
                yield f"{field}[{key}]", "Invalid value: illegal base64 data"
    if size > _MAX_DATA:
        yield "[]", f"Too long: may not be more than {_MAX_DATA} bytes"


def _role(thing: Object) -> Problems:
    for i, rule in enumerate(thing.get("rules") or []):
        if not rule.get("resources") or rule.get("apiGroups") is None or not rule.get("verbs"):
            yield f"rules[{i}]", "Required value: verbs, apiGroups and resources must be named"


def _job(spec: Object) -> Problems:
    pod = spec["template"].get("spec") or {}
    yield from _labels((spec["template"].get("metadata") or {}).get("labels") or {}, "spec")
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        where = "spec.template.spec.restartPolicy"
        yield where, 'Required value: valid values: "OnFailure", "Never"'
    if "backoffLimitPerIndex" in spec and spec.get("completionMode") != "Indexed":
        yield "spec.backoffLimitPerIndex", "Invalid value: requires indexed completion mode"
    yield from _pod(pod, "spec.template.spec")


def _pod(spec: Object, path: str) -> Problems:
    volumes = [volume["name"] for volume in spec.get("volumes") or []]
    names: list[str] = []
    for volume in volumes:
        if volumes.count(volume) > 1:
            yield f"{path}.volumes", f'Duplicate value: "{volume}"'
        if not _LABEL.fullmatch(volume) or len(volume) > 63:
            yield f"{path}.volumes", f'Invalid value: "{volume}": must be a DNS label'
    for volume in spec.get("volumes") or []:
        if len([key for key, value in volume.items() if value is not None]) != 2:
            yield f"{path}.volumes[{volume['name']}]", "Required value: one volume type"
    if not spec.get("containers"):
        yield f"{path}.containers", "Required value"
    for i, container in enumerate(spec.get("containers") or []):
        names.append(container["name"])
        yield from _container(container, f"{path}.containers[{i}]", volumes)
    for name in names:
        if names.count(name) > 1:
            yield f"{path}.containers", f'Duplicate value: "{name}"'
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        yield f"{path}.restartPolicy", f'Unsupported value: "{spec["restartPolicy"]}"'
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        yield f"{path}.terminationGracePeriodSeconds", "Invalid value: must be non-negative"
    for i, toleration in enumerate(spec.get("tolerations") or []):
        if toleration.get("operator", "Equal") not in ("Equal", "Exists"):
            yield f"{path}.tolerations[{i}].operator", "Unsupported value"
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            yield f"{path}.tolerations[{i}].operator", "Invalid value: value must be empty"


def _container(container: Object, path: str, volumes: list[str]) -> Problems:
    if not _LABEL.fullmatch(container["name"]) or len(container["name"]) > 63:
        yield f"{path}.name", f'Invalid value: "{container["name"]}": must be a DNS label'
    if not container.get("image") or container["image"] != container["image"].strip():
        yield f"{path}.image", "Required value"
    for i, variable in enumerate(container.get("env") or []):
        if not _ENV.fullmatch(variable["name"]):
            yield f"{path}.env[{i}].name", f'Invalid value: "{variable["name"]}"'
        if variable.get("value") and variable.get("valueFrom"):
            yield f"{path}.env[{i}].valueFrom", "Invalid value: may not be specified with a value"
    places = [mount["mountPath"] for mount in container.get("volumeMounts") or []]
    for i, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in volumes:
            yield f"{path}.volumeMounts[{i}].name", f'Not found: "{mount["name"]}"'
        if places.count(mount["mountPath"]) > 1:
            yield f"{path}.volumeMounts[{i}].mountPath", "Invalid value: must be unique"
    yield from _resources(container.get("resources") or {}, f"{path}.resources")


def _resources(resources: Object, path: str) -> Problems:
    amounts: dict[str, dict[str, int]] = {"limits": {}, "requests": {}}
    for field, parsed in amounts.items():
        for name, amount in (resources.get(field) or {}).items():
            try:
                parsed[name] = parse_quantity(amount)
            except ValueError as error:
                yield f"{path}.{field}[{name}]", f'Invalid value: "{amount}": {error}'
                return
    limits, requests = amounts["limits"], amounts["requests"]
    for name, amount in requests.items():
        if name in limits and amount > limits[name]:
            yield f"{path}.requests", f"Invalid value: must be less than or equal to {name} limit"
    for name in {*limits, *requests}:
        if "/" in name and (name not in limits or requests.get(name, limits[name]) != limits[name]):
            yield f"{path}.limits", f"Invalid value: {name}: limit must be set and equal request"


_LIST = re.compile(r"^List\[(.+)\]$")
_MAP = re.compile(r"^Dict\[str, (.+)\]$")
_SIMPLE: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "datetime": (str,),
    "bytes": (str,),
}  # fmt: skip


def check_schema(kind: Kind, thing: Object) -> None:
    """Raises Refused 400 for a field that the kind does not have or of another type, and 422 for
    a field that is missing."""
    if thing.get("apiVersion") != kind.api_version or thing.get("kind") != kind.name:
        raise Refused(
            400, f"the API version in the data ({thing.get('apiVersion')}, {thing.get('kind')}) "
            f"does not match the expected API version ({kind.api_version}, {kind.name})",
        )  # fmt: skip
    problem, field = _problem(kind.model, thing, "")
    if problem == "Required value":
        raise invalid(kind.name, str((thing.get("metadata") or {}).get("name")), field, problem)
    if problem:
        raise Refused(400, f"{kind.name} in version {kind.version!r} cannot be handled: "
                      f"strict decoding error: {problem} {field!r}")  # fmt: skip


def _problem(wanted: str, value: Any, path: str) -> tuple[str, str]:
    """Return the first problem below ``path`` and its place; empty if there is none."""
    if value is None or wanted == "object":
        return "", ""
    if found := _LIST.match(wanted):
        if not isinstance(value, list):
            return f"cannot unmarshal {_word(value)} into a list: field", path
        parts = [(found[1], item, f"{path}[{i}]") for i, item in enumerate(value)]
    elif found := _MAP.match(wanted):
        if not isinstance(value, dict):
            return f"cannot unmarshal {_word(value)} into a map: field", path
        # An amount may be written as a number.
        free = path.endswith((".limits", ".requests", ".hard", ".capacity", ".allocatable"))
        inner = "object" if free else found[1]
        parts = [(inner, item, f"{path}.{key}".lstrip(".")) for key, item in value.items()]
    elif types := _SIMPLE.get(wanted):
        fits = isinstance(value, types) and (wanted == "bool" or not isinstance(value, bool))
        return ("", "") if fits else (f"cannot unmarshal {_word(value)} into {wanted}: field", path)
    else:
        return _problem_of_model(wanted, value, path)
    return next((found for part in parts if (found := _problem(*part))[0]), ("", ""))


def _problem_of_model(wanted: str, value: Any, path: str) -> tuple[str, str]:
    model = getattr(models, wanted)
    if not isinstance(value, dict):
        return f"cannot unmarshal {_word(value)} into {wanted}: field", path
    names = {written: name for name, written in model.attribute_map.items()}
    for key in value:
        if key not in names:
            return "unknown field", f"{path}.{key}".lstrip(".")
    for name, field in model.model_fields.items():
        # A word of Python has another name in the model: `from` is var_from there.
        written = model.attribute_map.get(name) or model.attribute_map[field.alias]
        if field.is_required() and value.get(written) is None:
            return "Required value", f"{path}.{written}".lstrip(".")
    for key, item in value.items():
        found = _problem(model.openapi_types[names[key]], item, f"{path}.{key}".lstrip("."))
        if found[0]:
            return found
    return "", ""


def _word(value: Any) -> str:
    words = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
    return words.get(type(value), "object")
