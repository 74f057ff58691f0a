"""What a process uses, compared with what psutil reads."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.waiting import HANG_S
from torch_edl.processes import usage


def test_the_usage_of_this_process_and_machine() -> None:
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    before = usage.read()
    while usage.read()["cpu_s"] < before["cpu_s"] + 0.2:
        pass
    found = usage.read()
    assert found["time"] > before["time"]
    assert found["cpu_s"] >= before["cpu_s"] + 0.2
    assert found["machine_cpu_s"] >= before["machine_cpu_s"] + 0.1
    assert found["memory"] > len(held)
    assert found["machine_memory_total"] == psutil.virtual_memory().total
    assert 0 < found["machine_memory"] < found["machine_memory_total"]
    assert (found["machine_cpus"], found["machine"]) == (os.cpu_count(), os.uname().nodename)


def test_a_process_without_torch_does_not_import_it() -> None:
    source = (
        "import sys; from torch_edl.processes import usage; found = usage.read();"
        "assert 'torch' not in sys.modules; assert found['gpu_memory'] == 0"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


def test_a_gpu_that_computes_is_busy() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    pytest.importorskip("pynvml", reason="pip install torch-edl[gpu]")
    matrix = torch.ones(4096, 4096, device="cuda")
    until = time.monotonic() + HANG_S
    while not (found := usage.read())["gpu_utilization"] and time.monotonic() < until:
        for _ in range(100):
            matrix = (matrix @ matrix).clamp(max=1)
        torch.cuda.synchronize()
    assert found["gpu_utilization"] is not None
    assert 0 < found["gpu_utilization"] <= 1
    assert found["gpu_memory"] > 0


def test_a_process_of_torch_without_a_gpu_knows_of_no_utilization() -> None:
    source = (
        "import torch; from torch_edl.processes import usage; found = usage.read();"
        "assert (found['gpu_memory'], found['gpu_utilization']) == (0, None)"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
