"""Listing of the objects that a URL names: one object, a folder, or the matches of a pattern."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from torch_edl.data.sources.storage.attempts import tried
from torch_edl.data.sources.storage.objects import connect


def matching(pattern: str) -> list[str]:
    """Return the sorted URLs of the objects that a URL, a folder or a pattern names.

    Raises:
        UsageError: see :func:`connect`.
        DataError: the store cannot be listed.
    """
    system, path = connect(pattern)

    def listed() -> list[str]:
        system.invalidate_cache()
        if "*" not in path and "?" not in path and "[" not in path:
            if not system.isdir(path):
                return [path] if system.exists(path) else []
            return [name for name in system.find(path) if not _is_hidden(name, path)]
        marked = path.rpartition("/")[2].startswith("_")
        found = []
        for name, about in system.glob(path, detail=True).items():
            if not marked and _base(name).startswith(("_", ".")):
                continue
            if about["type"] != "directory":
                found.append(name)
            elif "**" not in path:
                found += [f for f in system.find(name) if not _is_hidden(f, name)]
        return found

    names = tried(pattern, listed)
    return sorted({_url_of(name, system, pattern) for name in names if _base(name)})


def _url_of(name: str, system: Any, pattern: str) -> str:
    parts = urlsplit(pattern)
    # The first part of a URL is a host unless the paths of the file system begin with it.
    if parts.netloc and name.startswith("/") and not name.startswith(f"/{parts.netloc}/"):
        return f"{parts.scheme}://{parts.netloc}{name}"
    return str(system.unstrip_protocol(name))


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _is_hidden(name: str, folder: str) -> bool:
    """Return True for caches and markers, which are not data, as in local folders."""
    return any(part.startswith((".", "_")) for part in name[len(folder) :].split("/"))
