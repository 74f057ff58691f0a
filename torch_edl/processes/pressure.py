"""Counts of the kernel that show why a process runs slowly: stolen CPU time, CPU limits, swap, and
waits for disks and CPUs. Reading them takes a fraction of a millisecond."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_STEAL = 7  # field of a line of CPU times
_TIMES = 8  # fields before those of guests, which user time includes
# Shares of the time, and pages per second, above which a count is named as the likely cause.
_STOLEN, _THROTTLED, _DISK, _CPU, _PAGES = 0.1, 0.1, 0.3, 0.5, 100.0


class Pressure(NamedTuple):
    """What has kept the processes of a machine from running since the machine or the cgroup
    started; 0 for what the kernel does not count."""

    at_s: float
    """Time of the counts, by a clock of the machine that never goes back."""
    cpu_s: float
    """CPU time of all CPUs, idle or not."""
    stolen_s: float
    """Part of the CPU time that the hypervisor gave to other machines."""
    throttled_s: float
    """Time in which the CPU limit stopped the cgroup of the process."""
    swapped_in: float
    """Pages that were read back from swap."""
    disk_wait_s: float
    """Time in which a process waited for a disk."""
    cpu_wait_s: float
    """Time in which a process waited for a CPU."""

    @classmethod
    def of(cls, machine: Mapping[str, float]) -> Pressure | None:
        """Return the counts of a heartbeat; None if it has not all of them."""
        told = all(name in machine for name in cls._fields)
        return cls(**{name: machine[name] for name in cls._fields}) if told else None


def read(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Pressure:
    """Return the counts of this machine and of the cgroup of this process."""
    times = [int(word) for word in _after(proc / "stat", "cpu ").split()[:_TIMES]]
    tick = os.sysconf("SC_CLK_TCK")
    return Pressure(
        at_s=time.monotonic(),
        cpu_s=sum(times) / tick,
        stolen_s=times[_STEAL] / tick if len(times) > _STEAL else 0.0,
        throttled_s=_throttled_s(proc, cgroups),
        swapped_in=_count(_after(proc / "vmstat", "pswpin ")),
        disk_wait_s=_stalled_s(proc / "pressure" / "io"),
        cpu_wait_s=_stalled_s(proc / "pressure" / "cpu"),
    )


def cause(first: Pressure, last: Pressure) -> str:
    """Return why the machine of a process is slow, from its counts at two times; empty if they
    show no cause."""
    passed_s, cpu_s = last.at_s - first.at_s, last.cpu_s - first.cpu_s
    if passed_s <= 0:
        return ""
    stolen = (last.stolen_s - first.stolen_s) / cpu_s if cpu_s > 0 else 0.0
    throttled = (last.throttled_s - first.throttled_s) / passed_s
    pages = (last.swapped_in - first.swapped_in) / passed_s
    disk = (last.disk_wait_s - first.disk_wait_s) / passed_s
    cpu = (last.cpu_wait_s - first.cpu_wait_s) / passed_s
    if throttled >= _THROTTLED:
        return f"its CPU limit stops it {min(throttled, 1.0):.0%} of the time"
    if stolen >= _STOLEN:
        return f"other virtual machines take {stolen:.0%} of its CPU time"
    if pages >= _PAGES:
        return f"its machine swaps, {pages:,.0f} pages a second"
    if disk >= _DISK:
        return f"processes on its machine wait for disks {min(disk, 1.0):.0%} of the time"
    if cpu >= _CPU:
        return f"processes on its machine wait for a CPU {min(cpu, 1.0):.0%} of the time"
    return ""


def _throttled_s(proc: Path, cgroups: Path) -> float:
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container, the path may be that of the host, while the own cgroup is the root.
        for folder in (path.lstrip("/"), ""):
            stat = cgroups / ("cpu" if controllers else "") / folder / "cpu.stat"
            if throttled := _count(_after(stat, "throttled_usec ")):
                return throttled / 1e6
            if throttled := _count(_after(stat, "throttled_time ")):  # version 1
                return throttled / 1e9
    return 0.0


def _stalled_s(file: Path) -> float:
    return _count(_after(file, "some ").rpartition("total=")[2]) / 1e6


def _after(file: Path, start: str) -> str:
    """Return the rest of the first line that begins with ``start``; empty if there is none."""
    lines = _text(file).splitlines()
    return next((line[len(start) :] for line in lines if line.startswith(start)), "")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _count(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0
