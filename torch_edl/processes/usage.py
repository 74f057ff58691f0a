"""What a process and its machine use: CPU, memory, and GPUs. One reading takes a fraction of a
millisecond, and some milliseconds with a GPU."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TypedDict

_PROC = Path("/proc")
# Fields of the line of all CPUs in /proc/stat; user and nice include those of guests.
_IDLE, _IOWAIT, _TIMES = 3, 4, 8


class Usage(TypedDict):
    """The fields of ``Usage`` in ``counts.proto``."""

    time: float
    """Clock of the machine, in seconds."""
    cpu_s: float
    """CPU time of the process since its start."""
    memory: int
    """Resident memory of the process, in bytes."""
    machine: str
    """Host name."""
    machine_cpus: int
    machine_cpu_s: float
    """CPU time of all processes of the machine since its boot."""
    machine_memory: int
    """Memory of the machine that is in use, in bytes."""
    machine_memory_total: int
    gpu_memory: int
    """Memory of GPUs that torch has reserved for the process, in bytes; 0 without a GPU."""
    gpu_memory_total: int
    """Memory of these GPUs, in bytes."""
    gpu_utilization: float | None
    """Part of about the last second in which these GPUs computed, for any process: 0 to 1, the mean
    if there are several. None without a GPU, or if the package ``nvidia-ml-py`` is missing."""


def read() -> Usage:
    """Return what this process and its machine use now; 0 for what the system does not tell."""
    gpu_memory, gpu_total, gpu_utilization = _of_gpus()
    memory = _sizes(_PROC / "meminfo")
    total = memory.get("MemTotal:", 0)
    return Usage(
        time=time.monotonic(),
        cpu_s=time.process_time(),
        memory=_sizes(_PROC / "self" / "status").get("VmRSS:", 0),
        machine=socket.gethostname(),
        machine_cpus=os.cpu_count() or 0,
        machine_cpu_s=_machine_cpu_s(),
        machine_memory=total - memory.get("MemAvailable:", total),
        machine_memory_total=total,
        gpu_memory=gpu_memory,
        gpu_memory_total=gpu_total,
        gpu_utilization=gpu_utilization,
    )


def _sizes(file: Path) -> dict[str, int]:
    """Return the lines ``NAME: N kB`` of a file, in bytes."""
    lines = (line.split() for line in _text(file).splitlines() if line.endswith(" kB"))
    return {words[0]: int(words[1]) << 10 for words in lines}


def _machine_cpu_s() -> float:
    words = _text(_PROC / "stat").partition("\n")[0].split()[1 : 1 + _TIMES]
    times = [int(word) for word in words]
    idle = sum(times[_IDLE : _IOWAIT + 1])
    return (sum(times) - idle) / os.sysconf("SC_CLK_TCK")


def _of_gpus() -> tuple[int, int, float | None]:
    """Return the reserved memory of the GPUs that this process uses, their whole memory, and their
    utilization. This module does not import torch. The calls create no context on a GPU, and do
    not wait for a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return 0, 0, None
    reserved = {each: torch.cuda.memory_reserved(each) for each in range(torch.cuda.device_count())}
    used = [each for each, size in reserved.items() if size]
    total = sum(torch.cuda.get_device_properties(each).total_memory for each in used)
    try:
        parts = [torch.cuda.utilization(each) / 100 for each in used]
    except Exception:  # errors of the driver's library and of its absence have no common base
        parts = []
    return sum(reserved.values()), total, sum(parts) / len(parts) if parts else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
