"""The limits of the control groups of this process, of version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")
# Limit and use by controller: of version 2, and of version 1.
_FILES = {
    "memory": (("memory.max", "memory.current"),
               ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
}  # fmt: skip


def room(controller: str, *, default: int, root: Path = _ROOT, groups: Path = _GROUPS) -> int:
    """Return the smallest room of the groups of this process.

    Args:
        controller: ``memory`` (bytes, with file pages that can be dropped) or ``pids``.
        default: the room if there is no limit.
    """
    return min((_room(*each) for each in _folders(controller, root, groups)), default=default)


def _folders(controller: str, root: Path, groups: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the folders with a limit, with the names of the files of the limit and of the use."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base = root / controller if names else root
        # In a container, the path may be that of the host, which is not mounted.
        folder = base / path.strip("/")
        limit, used = _FILES[controller][bool(names)]
        for each in (folder, *folder.parents):
            if each.is_relative_to(base) and _is_limit(each / limit):
                yield each, limit, used


def _is_limit(file: Path) -> bool:
    try:
        return file.read_text().strip().isdecimal()
    except OSError:
        return False


def _room(folder: Path, limit: str, used: str) -> int:
    free = int((folder / limit).read_text()) - int((folder / used).read_text())
    if limit.startswith("memory"):
        for line in (folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "inactive_file":
                free += int(value)
    return max(0, free)
