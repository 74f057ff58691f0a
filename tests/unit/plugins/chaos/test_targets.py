"""Signals reach processes of the job only, whatever a status says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.waiting import HANG_S
from torch_edl.config.environment import ENV_TOKEN
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.chaos import machine
from torch_edl.plugins.chaos.machine import MachineSite
from torch_edl.plugins.chaos.storm import Blow, Target
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


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> MachineSite:
    """The site of a job with the token ``secret``."""
    monkeypatch.setattr(machine, "_running", lambda job: SimpleNamespace(token="secret"))
    return MachineSite(LocalJob("j"))


def kill(pid: int) -> Blow:
    return Blow(Target("worker", 4, pid), signal.SIGKILL)


def listed(pid: int, state: str = "running") -> pb.ProcessStatus:
    return pb.ProcessStatus(role="worker", id=4, pid=pid, state=state)


def test_a_process_of_the_job_gets_the_signal(start: Start, site: MachineSite) -> None:
    process = start("secret")
    assert site.living([listed(process.pid)]) == [kill(process.pid).target]
    assert site.strike(kill(process.pid))
    assert process.wait(HANG_S) == -signal.SIGKILL


def test_a_process_of_another_job_or_none_does_not(start: Start, site: MachineSite) -> None:
    """A pid may belong to another machine, or may have been used again."""
    other = start("secret-too")
    for pid in (other.pid, os.getpid(), 1):
        assert site.living([listed(pid)]) == []
        assert site.out_of_reach([listed(pid)]) == 1
        assert not site.strike(kill(pid))
    assert other.poll() is None


def test_a_process_that_ended(start: Start, site: MachineSite) -> None:
    process = start("secret")
    assert site.living([listed(process.pid, "exited")]) == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert site.living([listed(process.pid)]) == []
    process.wait()
    assert not site.strike(kill(process.pid))
    assert site.living([listed(0)]) == []
