"""LocalLauncher with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import require_networks
from tests.waiting import HANG_S, is_running, wait_for
from torch_edl.processes.launcher import Command, ProcessExit, ProcessSpec
from torch_edl.processes.local import LocalLauncher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    made = LocalLauncher(tmp_path / "logs")
    yield made
    made.stop_all(grace_s=0)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., ProcessSpec]:
    """Writes a module and returns the spec that runs it as worker ``id``."""

    def make(source: str, id: int = 0) -> ProcessSpec:
        (tmp_path / f"program{id}.py").write_text(textwrap.dedent(source))
        return ProcessSpec(
            role="worker",
            id=id,
            module=f"program{id}",
            args=["one", "two"],
            env={"PYTHONPATH": str(tmp_path), "GREETING": "hello"},
        )

    return make


def collect(launcher: LocalLauncher, count: int) -> list[ProcessExit]:
    found: list[ProcessExit] = []

    def enough() -> bool:
        found.extend(launcher.poll())
        return len(found) >= count

    wait_for(enough, f"{count} exits")
    return sorted(found, key=lambda e: e.id)


def log_has(launcher: LocalLauncher, id: int, text: str) -> bool:
    path = Path(launcher.log_path("worker", id))
    return path.exists() and text in path.read_text()


def test_output_environment_and_exit_code(launcher, program):
    pid = launcher.start(
        program(
            """
            import os, sys
            print(os.environ["GREETING"], sys.argv[1:], os.getpid())
            print("to stderr", file=sys.stderr)
            print("own session", os.getsid(0) == os.getpid())
            print("grpc says", os.environ["GRPC_VERBOSITY"])
            sys.exit(7)
            """
        )
    )
    assert collect(launcher, 1) == [ProcessExit(role="worker", id=0, code=7)]
    text = Path(launcher.log_path("worker", 0)).read_text()
    assert f"hello ['one', 'two'] {pid}" in text
    assert "to stderr" in text
    assert "own session True" in text
    assert "grpc says ERROR" in text
    assert launcher.poll() == []


def test_stop_uses_force_after_the_grace_also_on_what_it_forked(launcher, program):
    launcher.start(
        program(
            """
            import os, signal, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = os.fork()
            if child:
                print("child", child, "ready")
            time.sleep(60)
            """
        )
    )
    wait_for(lambda: log_has(launcher, 0, "ready"), "the fork")
    forked = int(Path(launcher.log_path("worker", 0)).read_text().split()[1])
    launcher.stop("worker", 0, grace_s=1000.0)
    assert launcher.poll() == []
    launcher.stop("worker", 0, grace_s=0.2)
    exits = collect(launcher, 1)
    assert exits[0].signal == signal.SIGKILL
    wait_for(lambda: not is_running(forked), "the end of what it forked")


def test_what_a_dead_process_forked_is_ended(launcher, program):
    launcher.start(
        program(
            """
            import os, time
            child = os.fork()
            if child:
                print("child", child, "ready")
            else:
                time.sleep(60)
            """
        )
    )
    assert collect(launcher, 1)[0].code == 0
    forked = int(Path(launcher.log_path("worker", 0)).read_text().split()[1])
    wait_for(lambda: not is_running(forked), "the end of what it forked")


def test_a_folder_of_the_user_does_not_shadow_modules(launcher, program, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program0.py").write_text("print('shadow')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    launcher.start(program("print('ours')"))
    collect(launcher, 1)
    assert "ours" in Path(launcher.log_path("worker", 0)).read_text()


def test_another_thread_is_refused(launcher, program):
    errors: list[BaseException] = []

    def start() -> None:
        try:
            launcher.start(program("pass"))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


COMMAND = """
import os, sys, time
print(sys.argv[1], os.environ["RANK"], os.getsid(0) == os.getpid(), sys.stdin.readline().strip())
print("to stderr", file=sys.stderr)
child = os.fork()
if child == 0:
    time.sleep(60)
print("child", child)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_has_files_of_its_own_and_may_leave_processes(launcher, tmp_path, code):
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("of an earlier one")
    read, write = os.pipe()
    os.write(write, b"from stdin\n")
    before = os.dup(0)
    os.dup2(read, 0)
    command = Command(
        words=[sys.executable, "-u", "-c", COMMAND, str(code)],
        env={"RANK": "7"},
        stdout=str(out),
        stderr=str(err),
        error_file=str(tmp_path / "error.json"),
    )
    launcher.start(ProcessSpec(role="worker", id=0, command=command))
    os.dup2(before, 0)
    for fd in (before, read, write):
        os.close(fd)
    (tmp_path / "open-loop").write_text("ValueError: bad")
    (end,) = collect(launcher, 1)
    assert (end.code, end.open_loop) == (code, "ValueError: bad" if code == 0 else None)
    first, second = out.read_text().splitlines()
    assert first == f"{code} 7 True from stdin"
    assert err.read_text() == "to stderr\n"
    child = int(second.split()[1])
    if code:
        wait_for(lambda: not is_running(child), "the end of what it forked")
    else:
        assert is_running(child)
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("group", [False, True])
def test_sigterm_of_a_command_is_for_it_alone_or_for_its_group(launcher, tmp_path, group):
    source = (
        "import os, signal, sys, time\n"
        "child = os.fork()\n"
        "role = 'parent' if child else 'child'\n"
        "def hear(*_):\n"
        "    print(role, 'heard')\n"
        # After the end of the parent, the launcher kills the group.
        "    if child and len(sys.argv) > 1: os.waitpid(child, 0)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, hear)\n"
        "print(role, 'ready')\n"
        "while True: time.sleep(0.01)\n"
    )
    out = tmp_path / "out"
    words = [sys.executable, "-u", "-c", source, *["waits"] * group]
    command = Command(words=words, stdout=str(out), terminates_group=group)
    launcher.start(ProcessSpec(role="worker", id=0, command=command))
    wait_for(lambda: out.read_text().count("ready") == 2, "both")
    launcher.stop("worker", 0, grace_s=100.0)
    assert collect(launcher, 1)[0].code == 0
    heard = "child heard"
    if group:
        wait_for(lambda: heard in out.read_text(), "the child")
    else:
        assert heard not in out.read_text()


PARENT = """
import signal, sys, time
from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.local import LocalLauncher
launcher = LocalLauncher(sys.argv[1])
for id in (0, 1):
    spec = ProcessSpec(role="worker", id=id, module="follower", env={"PYTHONPATH": sys.argv[2]})
    print(launcher.start(spec), flush=True)
time.sleep(60)
"""

FOLLOWER = """
import os, signal, sys, time
from torch_edl.processes.this_process import setup_logging
import logging
setup_logging("worker", 3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
logging.getLogger("here").info("following")
time.sleep(60)
"""


def test_children_die_with_a_parent_that_is_killed(launcher, tmp_path):
    (tmp_path / "follower.py").write_text(FOLLOWER)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "logs"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        children = [int(parent.stdout.readline()) for _ in range(2)]
        for id in (0, 1):
            wait_for(lambda id=id: log_has(launcher, id, "following"), "the start")
        assert "worker-3 INFO here: following" in Path(launcher.log_path("worker", 0)).read_text()
        parent.kill()
    wait_for(lambda: not any(is_running(c) for c in children), "the end of the children")


_PROCESS_1 = """
import os, signal, subprocess, sys, time
from tests.cluster import linux

linux.unshare_as_root(linux.NEW_PIDS | linux.NEW_MOUNTS)
if pid := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
linux.mount("none", "/", flags=linux.RECURSIVE | linux.PRIVATE)
linux.mount("proc", "/proc", "proc")
from torch_edl.processes.process_group import ChildGroup, reap_orphans

assert os.getpid() == 1
fork = "import os, signal; os.fork(); print(flush=True); signal.pause()"
children = [
    subprocess.Popen([sys.executable, "-c", fork], stdout=subprocess.PIPE, start_new_session=True)
    for _ in range(2)
]
for child in children:
    child.stdout.readline(), child.stdout.readline()
leader = ChildGroup(children[1])
os.killpg(children[0].pid, signal.SIGKILL)
children[0].wait()
os.killpg(children[1].pid, signal.SIGKILL)
os.waitid(os.P_PID, children[1].pid, os.WEXITED | os.WNOWAIT)
while (left := [n for n in os.listdir("/proc") if n.isdecimal()]) != ["1", str(children[1].pid)]:
    reap_orphans()
    time.sleep(0.01)
assert children[1].wait() == -signal.SIGKILL, "its exit code was not lost"
"""


def test_process_1_reaps_what_its_killed_children_forked() -> None:
    require_networks()
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS_1], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
