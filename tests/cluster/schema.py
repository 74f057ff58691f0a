"""Checks a manifest against the OpenAPI schema that the installed official client was generated
from: its classes name every field, the type of the field, and what is required.

The server decodes strictly, as ``kubectl`` asks for by default: an unknown field is an error. A
validator of JSON Schema says the same, but takes 30 ms for each pod.
"""

from __future__ import annotations

import re
from typing import Any

from kubernetes.client import models

from tests.cluster.kinds import Kind, Object
from tests.cluster.refused import Refused, invalid

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
