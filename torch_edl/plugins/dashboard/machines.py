"""CPU and memory of processes and machines, from the usages in the status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Usage = Mapping[str, Any]


class Machines:
    """The newest two usages of each process."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[Usage | None, Usage]] = {}

    def note(self, processes: Iterable[Mapping[str, Any]]) -> None:
        """Note the usages of the processes that run now."""
        new: dict[tuple[str, int], tuple[Usage | None, Usage]] = {}
        for process in processes:
            if usage := process.get("usage"):
                key = process["role"], process["id"]
                before, last = self._seen.get(key, (None, usage))
                begins = usage["time"] < last["time"] or usage["cpu_s"] < last["cpu_s"]
                if begins:  # another process of this name
                    new[key] = None, usage
                else:
                    new[key] = (last if usage["time"] > last["time"] else before), usage
        self._seen = new

    def of(self, role: str, id: int) -> dict[str, Any] | None:
        """Return ``cpu``, the CPUs that a process used in the last second (None at first), and
        ``memory`` and ``gpu_memory`` in bytes, and ``gpu`` (the part of the last second in which
        its GPUs computed, None if unknown); None if nothing is known of it."""
        if (role, id) not in self._seen:
            return None
        before, last = self._seen[role, id]
        return {
            "cpu": _per_second(before, last, "cpu_s"),
            "memory": last["memory"],
            "gpu_memory": last["gpu_memory"],
            "gpu": last.get("gpu_utilization"),
        }

    def all(self) -> list[dict[str, Any]]:
        """Return each machine by name: its processes, ``cpu`` (CPUs that were busy in the last
        second, None at first), ``cpus``, and memory in bytes. ``gpu_memory`` is that of the
        processes of the job, and ``gpu`` the mean of theirs."""
        found: dict[str, dict[str, Any]] = {}
        newest: dict[str, float] = {}
        parts: dict[str, list[float]] = {}
        for (role, id), (before, last) in sorted(self._seen.items()):
            name = last["machine"]
            machine = found.setdefault(
                name, {"name": name, "processes": [], "cpu": None, "gpu_memory": 0, "gpus": 0}
            )
            machine["processes"].append(f"{role}-{id}")
            if (part := last.get("gpu_utilization")) is not None:
                parts.setdefault(name, []).append(part)
            machine["gpu_memory"] += last["gpu_memory"]
            # Processes may share GPUs; the largest number is that of one process.
            machine["gpus"] = max(machine["gpus"], last["gpu_memory_total"])
            if last["time"] >= newest.get(name, 0.0):
                newest[name] = last["time"]
                machine["memory"] = last["machine_memory"]
                machine["memory_total"] = last["machine_memory_total"]
                machine["cpus"] = last["machine_cpus"]
                if (cpu := _per_second(before, last, "machine_cpu_s")) is not None:
                    machine["cpu"] = cpu
        for name, machine in found.items():
            of_gpus = parts.get(name)
            machine["gpu"] = sum(of_gpus) / len(of_gpus) if of_gpus else None
        return [found[name] for name in sorted(found)]


def _per_second(before: Usage | None, last: Usage, name: str) -> float | None:
    if before is None:
        return None
    passed_s: float = last["time"] - before["time"]
    used_s: float = last[name] - before[name]
    return round(max(0.0, used_s / passed_s), 3)
