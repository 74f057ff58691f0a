"""LimitRanges: amounts that a namespace gives to containers that name none, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.kinds import LIMIT_RANGES, Object
from tests.cluster.quantities import limits_of, parse_quantity, requests_of, write_quantity
from tests.cluster.store import Store


def set_limits(store: Store, namespace: str, spec: Object) -> None:
    """Completes the spec of a pod, as the API server does before it looks at the form."""
    for item in _items(store, namespace, "Container"):
        most = item.get("max") or {}
        limits = {**most, **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        for container in [*(spec.get("initContainers") or []), *spec.get("containers", [])]:
            own = container.setdefault("resources", {})
            for field, amounts in (("requests", requests), ("limits", limits)):
                named = own.get("limits") or {}
                fresh = {k: v for k, v in amounts.items() if field == "limits" or k not in named}
                if fresh:
                    own[field] = {**fresh, **(own.get(field) or {})}


def problems_of(store: Store, namespace: str, spec: Object) -> list[str]:
    """Why the pod is refused."""
    found: list[str] = []
    for item in _items(store, namespace, "Container"):
        for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
            found += _problems(item, "Container", {"containers": [container]})
    for item in _items(store, namespace, "Pod"):
        found += _problems(item, "Pod", spec)
    return found


def _problems(item: Object, word: str, spec: Object) -> Iterator[str]:
    asked, limits = requests_of(spec), limits_of(spec)
    for name, text in (item.get("min") or {}).items():
        if name not in asked:
            yield f"minimum {name} usage per {word} is {text}.  No request is specified"
        elif asked[name] < parse_quantity(text):
            amount = write_quantity(asked[name])
            yield f"minimum {name} usage per {word} is {text}, but request is {amount}"
    for name, text in (item.get("max") or {}).items():
        if name not in limits:
            yield f"maximum {name} usage per {word} is {text}.  No limit is specified"
        elif limits[name] > parse_quantity(text):
            amount = write_quantity(limits[name])
            yield f"maximum {name} usage per {word} is {text}, but limit is {amount}"


def _items(store: Store, namespace: str, word: str) -> Iterator[Object]:
    for limit_range in store.list(LIMIT_RANGES, namespace):
        for item in limit_range["spec"]["limits"]:
            if item["type"] == word:
                yield item
