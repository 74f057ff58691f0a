"""Convert the texts of pod options to parts of manifests, as plain data.

Raises:
    UsageError: (every function) the text is invalid; the message contains the option, the value
        and what was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from torch_edl.errors import UsageError

_SOURCES: dict[str, Callable[[str], dict[str, Any]]] = {
    "claim": lambda name: {"persistentVolumeClaim": {"claimName": name}},
    "host": lambda path: {"hostPath": {"path": path}},
    "config-map": lambda name: {"configMap": {"name": name}},
    "secret": lambda name: {"secret": {"secretName": name}},
}
_VOLUME = (
    "write claim=NAME,path=/data[,sub-path=DIR][,read-only]; host=, config-map= or secret= may "
    "stand for claim="
)
LIMITS = "limits."
"""Prefix of the name of a resource whose quantity is only a limit, as in a ResourceQuota."""
# Resource names without a domain are those of Kubernetes itself.
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = re.compile(r"hugepages-\d+[KMGTPE]i")
# Syntax of a quantity; only the API server knows which resources a node has.
_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[EPTGMK]i|[numkMGTPE])?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)


def resources(option: str, text: str) -> dict[str, str]:
    """Parse ``cpu=4,memory=8Gi,nvidia.com/gpu=1,limits.cpu=8`` into quantities by name."""
    found: dict[str, str] = {}
    for name, value in _pairs(option, text, "write NAME=QUANTITY, such as cpu=4,memory=8Gi"):
        expected = f"{option} {name}={value}:"
        if not _is_resource(name.removeprefix(LIMITS)):
            raise UsageError(f"{expected} {name} is no resource; {_meant(name)}")
        if not _QUANTITY.fullmatch(value):
            raise UsageError(f"{expected} {value!r} is no quantity; write a number, perhaps with "
                             "m, k, M, G, Ki, Mi or Gi: cpu=500m, memory=8Gi")  # fmt: skip
        if not float(re.match(r"[\d.]+", value)[0]):  # type: ignore[index]
            raise UsageError(f"{expected} must be above 0; leave {name} out to ask for none")
        if "/" in name and not value.isdecimal():
            raise UsageError(f"{expected} {name} is given whole; write {name}=1")
        if name in found:
            raise UsageError(f"{option} {text}: {name} is there twice; write it once")
        found[name] = value
    for name in found:
        if name.startswith(LIMITS) and "/" in name:
            request = name.removeprefix(LIMITS)
            raise UsageError(
                f"{option} {text}: {name}: the limit of {request} is its request; leave it out"
            )
    return found


def volumes(option: str, texts: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and the mounts of its container; a volume with two mounts is
    listed once."""
    made: dict[tuple[str, str], dict[str, Any]] = {}
    mounts: dict[str, dict[str, Any]] = {}
    for text in texts:
        words = dict(_words(option, text))
        kinds = [kind for kind in _SOURCES if kind in words]
        unknown = [w for w in words if w not in (*_SOURCES, "path", "sub-path", "read-only")]
        if unknown:
            raise UsageError(f"{option} {text}: {unknown[0]} is unknown; {_VOLUME}")
        if len(kinds) != 1 or "path" not in words:
            raise UsageError(f"{option} {text}: {_VOLUME}")
        kind, path, sub_path = kinds[0], words["path"], words.get("sub-path", "")
        source = words[kind]
        if words.get("read-only", "") not in ("", "true"):
            raise UsageError(f"{option} {text}: read-only takes no value; leave it out to write")
        _check_mount(option, text, path, sub_path)
        if kind == "host" and not source.startswith("/"):
            raise UsageError(f"{option} {text}: host={source} is no absolute path of a node")
        if kind != "host" and not _DNS_NAME.fullmatch(source):
            raise UsageError(f"{option} {text}: {source!r} is no name of an object; use small "
                             "letters, digits, '-' and '.'")  # fmt: skip
        if path in mounts:
            raise UsageError(f"{option} {text}: another volume is mounted at {path} already")
        volume = made.setdefault(
            (kind, source), {"name": f"volume-{len(made)}", **_SOURCES[kind](source)}
        )
        mount: dict[str, Any] = {"name": volume["name"], "mountPath": path}
        if sub_path:
            mount["subPath"] = sub_path
        if "read-only" in words:
            mount["readOnly"] = True
        mounts[path] = mount
    return list(made.values()), list(mounts.values())


def shares(option: str, text: str) -> list[tuple[str, float]]:
    """Parse ``high=0.5`` into priority classes and their share of the workers."""
    found: list[tuple[str, float]] = []
    for name, value in _pairs(option, text, "write CLASS=SHARE, such as high=0.5"):
        object_name(option, name)
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not 0 < share <= 1:
            raise UsageError(f"{option} {name}={value}: the share of the workers is above 0 and "
                             "at most 1; write 0.5 for half of them")  # fmt: skip
        found.append((name, share))
    if sum(share for _, share in found) > 1 + 1e-9:
        raise UsageError(f"{option} {text}: the shares are more than all workers; lower them to a "
                         "sum of at most 1")  # fmt: skip
    return found


def object_name(option: str, text: str) -> None:
    """Check the name of a Kubernetes object, which may be empty."""
    if text and not _DNS_NAME.fullmatch(text):
        raise UsageError(f"{option} {text}: no name of an object of Kubernetes; use small letters, "
                         "digits, '-' and '.'")  # fmt: skip


def namespace(option: str, text: str) -> None:
    """Check the name of a namespace, which may be empty."""
    if text and not _DNS_LABEL.fullmatch(text):
        raise UsageError(f"{option} {text}: no name of a namespace; use at most 63 small letters, "
                         "digits and '-'")  # fmt: skip


def _is_resource(name: str) -> bool:
    domain, slash, last = name.rpartition("/")
    if slash:
        return bool(_LABEL_NAME.fullmatch(last) and _DNS_NAME.fullmatch(domain))
    return name in _RESOURCES or bool(_HUGE_PAGES.fullmatch(name))


def _meant(name: str) -> str:
    """Return a suggestion for a name that is no resource."""
    name = name.lower()
    if "/" not in name and "gpu" in name:
        return "did you mean nvidia.com/gpu?"
    close = difflib.get_close_matches(name, _RESOURCES, n=1)
    if close:
        return f"did you mean {close[0]}?"
    known = ", ".join(_RESOURCES)
    return f"write {known}, hugepages-2Mi or a name with a domain, such as nvidia.com/gpu"


def _check_mount(option: str, text: str, path: str, sub_path: str) -> None:
    if not path.startswith("/") or path.rstrip("/") == "" or ":" in path or ".." in path.split("/"):
        raise UsageError(f"{option} {text}: path={path} is no absolute path of a folder; write "
                         "such as path=/data")  # fmt: skip
    if sub_path.startswith("/") or ".." in sub_path.split("/"):
        raise UsageError(f"{option} {text}: sub-path={sub_path} is no folder of the volume; write "
                         "a relative path without '..'")  # fmt: skip


def _words(option: str, text: str) -> Iterable[tuple[str, str]]:
    seen: set[str] = set()
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name in seen:
            raise UsageError(f"{option} {text}: {name} is there twice; write it once")
        seen.add(name)
        yield name, value


def _pairs(option: str, text: str, expected: str) -> Iterable[tuple[str, str]]:
    for word in filter(None, text.split(",")):
        name, equals, value = word.strip().partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text}: {word!r} has no value; {expected}")
        yield name, value
