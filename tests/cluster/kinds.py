"""The kinds of objects that the server keeps, amounts of resources in them, and the Status that
answers a request which the server rejects."""

from __future__ import annotations

import math
import re
from collections import Counter
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
BUDGETS = Kind(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", has_status=True,
    returns_deleted=True,
)  # fmt: skip
PRIORITY_CLASSES = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)

KINDS = (
    NAMESPACES, NODES, PODS, SERVICES, SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, EVENTS, CLAIMS,
    QUOTAS, LIMIT_RANGES, JOBS, ROLES, ROLE_BINDINGS, NETWORK_POLICIES, BUDGETS,
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
    """What the scheduler counts of a pod (its spec): the sum over its containers, and a place
    among the pods of the node."""
    total: Counter[str] = Counter()
    for container in pod["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        total.update({name: parse_quantity(amount) for name, amount in asked.items()})
    total["pods"] = 1000
    return total


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


_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound",
    405: "MethodNotAllowed", 409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
}  # fmt: skip


class Refused(Exception):
    """A request is rejected.

    Args:
        code: of HTTP.
        message: for people.
        reason: for programs, if it is another one than the code says by itself.
        details: of the Status.
        retry_after_s: of the header ``Retry-After``.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.reason = reason or _REASONS[code]
        self.details = dict(details or {})
        if retry_after_s is not None:
            self.details["retryAfterSeconds"] = retry_after_s

    def status(self) -> dict[str, Any]:
        """The body of the answer, or the object of an event ``ERROR`` of a watch."""
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.code,
            "details": self.details,
        }  # fmt: skip


def not_found(plural: str, group: str, name: str) -> Refused:
    """There is no such object."""
    full = f"{plural}.{group}" if group else plural
    details = {"name": name, "kind": plural, "group": group}
    return Refused(404, f'{full} "{name}" not found', details=details)


def invalid(kind: str, name: str, field: str, problem: str) -> Refused:
    """The value of a field is rejected."""
    causes = [{"reason": "FieldValueInvalid", "message": problem, "field": field}]
    return Refused(
        422, f'{kind} "{name}" is invalid: {field}: {problem}',
        details={"name": name, "kind": kind, "causes": causes},
    )  # fmt: skip
