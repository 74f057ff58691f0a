"""The schemas of what commands print with ``--json``, in docs/schemas/."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def require_valid(name: str, value: Any) -> None:
    """Fails unless a value is as its schema says, and has no field that is not documented."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda error: error.json_path)
    assert not errors, "\n".join(f"{name}: {e.json_path}: {e.message[:300]}" for e in errors)


@functools.cache
def load(name: str) -> dict[str, Any]:
    """A schema as it is published."""
    return json.loads((FOLDER / f"{name}.json").read_text())  # type: ignore[no-any-return]


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    strict = {path.stem: _strict(load(path.stem)) for path in FOLDER.glob("*.json")}
    resources = [(each["$id"], Resource.from_contents(each)) for each in strict.values()]
    return Draft202012Validator(strict[name], registry=Registry().with_resources(resources))


def _strict(schema: Any) -> Any:
    """The schema, which admits no other fields than those that it describes."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found
