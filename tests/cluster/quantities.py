"""Amounts of resources, as manifests write them, and what a pod asks for."""

from __future__ import annotations

import math
import re
from collections import Counter

from tests.cluster.kinds import Object

_FORM = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?$")
_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def parse_quantity(text: object) -> int:
    """In thousandths, rounded up, as the API does; raises ValueError for what is none."""
    found = _FORM.match(str(text))
    if not found:
        raise ValueError(f"quantities must match the regular expression '{_FORM.pattern}'")
    number, suffix = found[1], found[2] or ""
    if suffix[:1] in "eE" and suffix[1:]:
        return math.ceil(float(number + suffix) * 1000)
    return math.ceil(float(number) * _SUFFIXES[suffix] * 1000 - 1e-9)


def requests_of(pod: Object) -> Counter[str]:
    """What the scheduler counts of a pod (its spec): the sum over its containers, or what an init
    container needs if that is more; and a place among the pods of the node."""
    total: Counter[str] = Counter()
    for container in pod["containers"]:
        total.update(_requests(container))
    for container in pod.get("initContainers") or []:
        for name, amount in _requests(container).items():
            total[name] = max(total[name], amount)
    total["pods"] = 1000
    return total


def limits_of(pod: Object) -> Counter[str]:
    """The sum of the limits of its containers."""
    total: Counter[str] = Counter()
    for container in pod["containers"]:
        limits = (container.get("resources") or {}).get("limits") or {}
        total.update({name: parse_quantity(amount) for name, amount in limits.items()})
    return total


def _requests(container: Object) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({name: parse_quantity(amount) for name, amount in asked.items()})


def write_quantity(thousandths: int) -> str:
    """For a message, as ``parse_quantity`` reads it."""
    if thousandths % 1000:
        return f"{thousandths}m"
    whole = thousandths // 1000
    for suffix in ("Gi", "Mi"):
        size = int(_SUFFIXES[suffix])
        if whole and whole % size == 0:
            return f"{whole // size}{suffix}"
    return str(whole)
