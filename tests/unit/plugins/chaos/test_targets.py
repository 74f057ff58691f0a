"""Signals reach processes of the job only, whatever a status says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import HANG_S
from torch_edl.config.environment import ENV_TOKEN
from torch_edl.plugins.chaos.machine import Processes
from torch_edl.plugins.chaos.storm import Target
from torch_edl.wire import master_pb2 as pb

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process with a token."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(token: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            env={**os.environ, ENV_TOKEN: token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def listed(pid: int, state: str = "running") -> pb.ProcessStatus:
    return pb.ProcessStatus(role="worker", id=4, pid=pid, state=state)


def test_a_process_of_the_job_gets_the_signal(start: Start) -> None:
    process, processes = start("secret"), Processes("secret")
    target = Target("worker", 4, process.pid)
    assert processes.living([listed(process.pid)]) == [target]
    assert processes.send(target, signal.SIGKILL)
    assert process.wait(HANG_S) == -signal.SIGKILL


def test_a_process_of_another_job_or_none_does_not(start: Start) -> None:
    """A pid may belong to another machine, or may have been used again."""
    other, processes = start("secret-too"), Processes("secret")
    for pid in (other.pid, os.getpid(), 1):
        assert processes.living([listed(pid)]) == []
        assert not processes.send(Target("worker", 4, pid), signal.SIGKILL)
    assert other.poll() is None


def test_a_process_that_ended(start: Start) -> None:
    process, processes = start("secret"), Processes("secret")
    assert processes.living([listed(process.pid, "exited")]) == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert processes.living([listed(process.pid)]) == []
    process.wait()
    assert not processes.send(Target("worker", 4, process.pid), signal.SIGKILL)
    assert processes.living([listed(0)]) == []
