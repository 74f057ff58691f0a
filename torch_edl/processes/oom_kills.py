"""Detects that the kernel has killed a process because memory was short.

The kernel counts such kills for each cgroup, and for the whole machine in ``/proc/vmstat``. The
count of the machine includes processes of other containers and users, so it is used only if this
process belongs to no cgroup with a count of its own.
"""

from __future__ import annotations

from pathlib import Path

OOM_KILLED = "the kernel killed the process, because memory was short"

_PROC = Path("/proc")
_LOOK_S = 1.0  # seconds between two reads of the count


class OomKills:
    """Watches the kernel's count of processes killed for lack of memory; see :func:`oom_kills`.

    The owner calls :meth:`look` regularly. Between a kill and the moment at which the owner notices
    the end of the process, :meth:`look` may have read the new count. Therefore :meth:`are_new`
    compares with the read before that one.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._looked_at = float("-inf")
        self._count = self._before = oom_kills(proc)

    def look(self, now: float) -> None:
        """Read the count if the last read is a second old; ``now``: monotonic time in seconds."""
        if now - self._looked_at >= _LOOK_S:
            self._before, self._count = self._count, oom_kills(self._proc)
            self._looked_at = now

    def are_new(self) -> bool:
        """Return whether the kernel killed a process in the last one or two seconds."""
        return oom_kills(self._proc) > self._before


def oom_kills(proc: Path = _PROC) -> int:
    """Return the number of processes that the kernel has killed because memory was short. The count
    is that of this process's cgroup, or of the whole machine if no cgroup above this process has a
    count. It is 0 if the kernel reports none.

    Args:
        proc: folder of the proc filesystem.
    """
    groups = _lines(proc / "self" / "cgroup")
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):  # cgroup v1; its root has a count, too
            folders = _folders(proc, path, "cgroup", "memory")
            return next((_count(f / "memory.oom_control") or 0 for f in folders), 0)
    for line in groups:
        if not line.startswith("0::"):
            continue
        # A process is counted in the nearest group above it that has the memory controller.
        folders = _folders(proc, line[3:], "cgroup2", "")
        for folder in folders:
            if (count := _count(folder / "memory.events")) is not None:
                return count
        # Only the root group has no cgroup.events. In a container, the topmost visible group is not
        # the root.
        if not folders or (folders[-1] / "cgroup.events").exists():
            return 0
    return _count(proc / "vmstat") or 0


def _folders(proc: Path, path: str, kind: str, controller: str) -> list[Path]:
    """Return the folder of a cgroup and those of the groups above it, up to the mount point; empty
    if the hierarchy is not mounted."""
    for line in _lines(proc / "self" / "mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        words, (type, _, options) = mount.split(), (*filesystem.split(), "", "", "")[:3]
        if type != kind or (controller and controller not in options.split(",")):
            continue
        root, top = Path(words[3]), Path(words[4])
        # In a container, the path may be that on the host, where only the container's own group is
        # mounted here.
        inner = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
        if ".." in inner.parts or not (top / inner).is_dir():
            inner = Path()
        return [top / each for each in (inner, *inner.parents)]
    return []


def _count(file: Path) -> int | None:
    """Return the value of the line ``oom_kill N``; None if there is none."""
    words = (line.split() for line in _lines(file))
    return next((int(each[1]) for each in words if each[0] == "oom_kill"), None)


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []
