"""Which kills for lack of memory count, by files as kernels write them and by real kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory_group import memory_group
from tests.waiting import HANG_S
from torch_edl.processes.oom_kills import OomKills, oom_kills

V1 = "25 20 0:29 {root} {top} rw,relatime - cgroup cgroup rw,memory\n"
V2 = "26 20 0:30 {root} {top} rw,nosuid - cgroup2 cgroup2 rw\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 7\noom_kill {count}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"


class Machine:
    """The files of one machine, whose processes the kernel killed 99 times."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.top = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.top.mkdir()
        (self.proc / "vmstat").write_text("nr_free_pages 5\noom_kill 99\n")

    def mount(self, line: str, groups: str, root: str = "/") -> None:
        told = "1 0 8:1 / / rw - ext4 /dev/root rw\n" + line.format(root=root, top=self.top)
        (self.proc / "self" / "mountinfo").write_text(told)
        (self.proc / "self" / "cgroup").write_text(groups)

    def write(self, group: str, file: str, text: str) -> None:
        (self.top / group).mkdir(parents=True, exist_ok=True)
        (self.top / group / file).write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_own_group_of_cgroup_v2_counts(machine: Machine) -> None:
    machine.mount(V2, "0::/user.slice/app\n")
    machine.write("user.slice", "memory.events", EVENTS.format(count=8))
    machine.write("user.slice/app", "memory.events", EVENTS.format(count=3))
    assert oom_kills(machine.proc) == 3


def test_a_group_without_the_controller_is_counted_by_the_one_above(machine: Machine) -> None:
    machine.mount(V2, "0::/user.slice/app/part\n")
    machine.write("user.slice", "memory.events", EVENTS.format(count=8))
    machine.write("user.slice/app/part", "cgroup.events", "populated 1\n")
    assert oom_kills(machine.proc) == 8


@pytest.mark.parametrize("path", ["/", "/init.scope"])
def test_only_the_root_of_cgroup_v2_counts_the_whole_machine(machine: Machine, path: str) -> None:
    machine.mount(V2, f"0::{path}\n")
    machine.write(path[1:], "cgroup.procs", "1\n")
    assert oom_kills(machine.proc) == 99


@pytest.mark.parametrize("path", ["/", "/../../pod7/app", "/kubepods/pod7/app"])
def test_the_topmost_group_of_a_container_is_its_own(machine: Machine, path: str) -> None:
    machine.mount(V2, f"0::{path}\n", root="/../.." if ".." in path else "/")
    machine.write("", "memory.events", EVENTS.format(count=2))
    assert oom_kills(machine.proc) == 2
    (machine.top / "memory.events").unlink()
    machine.write("", "cgroup.events", "populated 1\n")
    assert oom_kills(machine.proc) == 0, "those of other containers do not count"


@pytest.mark.parametrize("root", ["/", "/docker/7f"])
def test_cgroup_v1_counts_its_own_group(machine: Machine, root: str) -> None:
    machine.mount(V1, "4:cpu:/\n3:name=systemd:/\n2:memory:/docker/7f\n0::/\n", root)
    machine.write("", "memory.oom_control", CONTROL.format(count=5))
    machine.write("docker/7f", "memory.oom_control", CONTROL.format(count=4))
    assert oom_kills(machine.proc) == (4 if root == "/" else 5)


def test_a_kernel_without_cgroups_counts_the_whole_machine(machine: Machine) -> None:
    assert oom_kills(machine.proc) == 99
    (machine.proc / "vmstat").unlink()
    assert oom_kills(machine.proc) == 0


def test_a_kill_is_new_for_one_read_more(machine: Machine) -> None:
    machine.mount(V2, "0::/app\n")
    machine.write("app", "memory.events", EVENTS.format(count=3))
    kills = OomKills(machine.proc)
    kills.look(10.0)
    assert not kills.are_new(), "a kill before the start"
    machine.write("app", "memory.events", EVENTS.format(count=4))
    assert kills.are_new()
    kills.look(11.0)
    assert kills.are_new(), "the end is noticed after the count was read"
    kills.look(11.5)
    assert kills.are_new()
    kills.look(12.0)
    assert not kills.are_new()


LAUNCHER = """
import sys, time
from pathlib import Path
from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.local import LocalLauncher

folder = Path(sys.argv[1])
launcher = LocalLauncher(folder)
spec = ProcessSpec(role="worker", id=0, module=sys.argv[2], env={"PYTHONPATH": sys.argv[1]})
launcher.start(spec)
while not (ends := launcher.poll()):
    time.sleep(0.01)
print(ends[0].signal, ends[0].own_fault, ends[0])
"""
GREEDY = "room = []\nwhile True:\n    room.append(bytearray(1 << 24))\n"
VICTIM = """
import os, signal
from pathlib import Path

(Path(__file__).parent / "go").read_text()  # until a process of the other group was killed
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_real_kill_for_lack_of_memory_is_the_fault_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    with memory_group("edl-greedy", 300 << 20) as enter:
        command = [sys.executable, "-c", LAUNCHER, str(tmp_path), "greedy"]
        done = subprocess.run(
            command, preexec_fn=enter, capture_output=True, text=True, timeout=HANG_S
        )
    assert done.stdout.startswith("9 True signal 9: the kernel killed the process"), done


@pytest.mark.slow
def test_a_real_kill_in_another_group_is_not(tmp_path: Path) -> None:
    """A SIGKILL from outside that follows the kill at once has no known cause."""
    (tmp_path / "victim.py").write_text(VICTIM)
    os.mkfifo(tmp_path / "go")
    with memory_group("edl-victim", 1 << 30) as enter:
        command = [sys.executable, "-c", LAUNCHER, str(tmp_path), "victim"]
        with subprocess.Popen(
            command, preexec_fn=enter, stdout=subprocess.PIPE, text=True
        ) as launcher:
            with open(tmp_path / "go", "w"), memory_group("edl-other", 100 << 20) as other:
                killed = subprocess.run([sys.executable, "-c", GREEDY], preexec_fn=other)
                assert killed.returncode == -9
            assert launcher.communicate(timeout=HANG_S)[0] == "9 None signal 9\n"
