"""Counts of the kernel, in files as kernels have them and in those of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_edl.processes import pressure
from torch_edl.processes.pressure import Pressure, cause


@pytest.mark.parametrize(
    ("cgroup", "folder", "line", "throttled_s"),
    [
        ("0::/pod/me", "pod/me", "throttled_usec 2500000", 2.5),
        ("0::/of/the/host", "", "throttled_usec 2500000", 2.5),
        ("4:cpu,cpuacct:/me\n0::/", "cpu/me", "throttled_time 1500000000", 1.5),
        ("4:memory:/me", "memory/me", "throttled_usec 2500000", 0.0),
    ],
)
def test_all_counts(
    tmp_path: Path, cgroup: str, folder: str, line: str, throttled_s: float
) -> None:
    files = {
        "proc/stat": "cpu  100 0 200 300 0 0 0 400 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
        "proc/vmstat": "pswpout 3\npswpin 77\n",
        "proc/pressure/io": "some avg10=0.00 total=4000000\nfull avg10=0.00 total=1\n",
        "proc/pressure/cpu": "some avg10=1.00 total=6000000\n",
        "proc/self/cgroup": cgroup,
        f"cgroup/{folder}/cpu.stat": f"usage_usec 9\n{line}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    told = pressure.read(tmp_path / "proc", tmp_path / "cgroup")
    tick = os.sysconf("SC_CLK_TCK")
    assert (told.cpu_s, told.stolen_s) == (1000 / tick, 400 / tick)
    assert (told.swapped_in, told.disk_wait_s, told.cpu_wait_s) == (77, 4, 6)
    assert told.throttled_s == throttled_s


def test_what_a_kernel_does_not_count_is_0(tmp_path: Path) -> None:
    told = pressure.read(tmp_path, tmp_path)
    assert not any(told._replace(at_s=0))


def test_this_machine_counts_its_cpu_time() -> None:
    first, last = pressure.read(), pressure.read()
    assert last.at_s > first.at_s
    assert last.cpu_s >= first.cpu_s > 0
    assert Pressure.of(pressure.read()._asdict()) > last
    assert Pressure.of({}) is None


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"throttled_s": 12}, "its CPU limit stops it 60% of the time"),
        ({"stolen_s": 20}, "other virtual machines take 25% of its CPU time"),
        ({"swapped_in": 20_000}, "its machine swaps, 1,000 pages a second"),
        ({"disk_wait_s": 9}, "processes on its machine wait for disks 45% of the time"),
        ({"cpu_wait_s": 19}, "processes on its machine wait for a CPU 95% of the time"),
        ({"cpu_wait_s": 19, "throttled_s": 40}, "its CPU limit stops it 100% of the time"),
        ({"throttled_s": 1, "stolen_s": 7, "swapped_in": 10, "cpu_wait_s": 9}, ""),
    ],
)
def test_the_counts_of_a_machine_show_a_cause(counts: dict[str, float], text: str) -> None:
    first = Pressure(
        at_s=100, cpu_s=1000, throttled_s=5, stolen_s=5, swapped_in=0, disk_wait_s=5, cpu_wait_s=5
    )
    last = first._replace(at_s=120, cpu_s=1080)
    last = last._replace(**{name: getattr(last, name) + more for name, more in counts.items()})
    assert cause(first, last) == text
    assert cause(last, last) == ""
