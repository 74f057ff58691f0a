"""CPU and memory of processes and of their machines."""

from __future__ import annotations

from typing import Any

from torch_edl.plugins.dashboard.machines import Machines


def _process(role: str, id: int, time: float, cpu_s: float, **more: Any) -> dict[str, Any]:
    usage = {
        "time": time, "cpu_s": cpu_s, "memory": 1000, "machine": "a", "machine_cpus": 4,
        "machine_cpu_s": 3 * cpu_s, "machine_memory": 50, "machine_memory_total": 100,
        "gpu_memory": 0, "gpu_memory_total": 0, "gpu_utilization": None,
    }  # fmt: skip
    return {"role": role, "id": id, "usage": {**usage, **more}}


def test_cpu_is_that_between_two_heartbeats() -> None:
    machines = Machines()
    machines.note([_process("worker", 0, 10.0, 5.0), {"role": "spare", "id": 7, "usage": None}])
    assert machines.of("worker", 0) == {"cpu": None, "memory": 1000, "gpu_memory": 0, "gpu": None}
    assert machines.of("spare", 7) is None
    assert machines.all()[0]["cpu"] is None
    for _ in range(2):  # the status may have the same heartbeat twice
        machines.note([_process("worker", 0, 12.0, 6.0)])
        assert machines.of("worker", 0) == {
            "cpu": 0.5,
            "memory": 1000,
            "gpu_memory": 0,
            "gpu": None,
        }
        assert machines.all()[0]["cpu"] == 1.5
    machines.note([_process("worker", 0, 12.5, 0.1)])  # another process of the name
    assert machines.of("worker", 0) == {"cpu": None, "memory": 1000, "gpu_memory": 0, "gpu": None}
    machines.note([])
    assert (machines.of("worker", 0), machines.all()) == (None, [])


def test_a_machine_has_its_processes_and_their_gpus() -> None:
    machines = Machines()
    machines.note(
        [
            _process(
                "worker", 1, 10.0, 5.0, gpu_memory=7, gpu_memory_total=80, gpu_utilization=0.5
            ),
            _process(
                "worker",
                0,
                9.0,
                5.0,
                gpu_memory=5,
                gpu_memory_total=80,
                machine_memory=40,
                gpu_utilization=1.0,
            ),
            _process("ps", 0, 3.0, 5.0, machine="b"),
        ]
    )
    first, second = machines.all()
    assert (first["name"], first["processes"]) == ("a", ["worker-0", "worker-1"])
    assert (first["gpu_memory"], first["gpus"], first["memory"]) == (12, 80, 50)
    assert first["gpu"] == 0.75
    assert (second["name"], second["processes"], second["gpus"]) == ("b", ["ps-0"], 0)
