"""The launcher of a job on one machine when its node ends or cannot begin."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import Machine
from tests.waiting import is_running, wait_for
from torch_edl.processes.launcher import (
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRuns,
    ProcessSpec,
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    made = Machine()
    yield made
    made.close()


def lasting(machine: Machine, id: int, role: str = "worker") -> ProcessSpec:
    args = ["-n", "1", "-r", "1", "import time; time.sleep(1000)"]
    return ProcessSpec(role=role, id=id, module="timeit", args=args, env=machine.env)


def until(launcher, kind: type | tuple[type, ...], count: int) -> list[ProcessEvent]:
    found: list[ProcessEvent] = []

    def enough() -> bool:
        found.extend(each for each in launcher.poll() if isinstance(each, kind))
        return len(found) >= count

    wait_for(enough, f"{count} events of {kind}")
    return found


@pytest.mark.parametrize("adopted", [False, True])
def test_a_node_that_is_killed_is_one_loss_and_the_next_start_makes_another(
    machine: Machine, adopted: bool
) -> None:
    launcher = machine.launcher()
    for id in range(2):
        launcher.start(lasting(machine, id))
    pids = [each.pid for each in until(launcher, ProcessRuns, 2)]
    [node] = machine.left()
    if adopted:
        launcher.close()
        launcher = machine.launcher()
        launcher.adopt([Known(role="worker", id=id, ran=True) for id in range(2)])
        until(launcher, ProcessRuns, 2)
    os.kill(int(node), signal.SIGKILL)
    first, second = until(launcher, ProcessExit, 2)
    assert first.was_killed
    assert second.was_taken
    wait_for(lambda: not any(map(is_running, pids)), "the kernel ends them")
    launcher.start(lasting(machine, 2))
    [again] = until(launcher, ProcessRuns, 1)
    assert again.id == 2
    launcher.stop_all(grace_s=0)
    assert machine.left() == []


def test_a_node_that_cannot_begin_says_where_it_tells_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    launcher = machine.launcher()
    launcher.start(lasting(machine, 0))
    [refused] = until(launcher, ProcessNotStarted, 1)
    assert "exit code 1" in refused.why
    assert refused.why.endswith("node-0.log")


def test_a_node_that_an_earlier_job_of_the_name_has_left_is_ended(machine: Machine) -> None:
    before = machine.launcher()
    before.start(lasting(machine, 0))
    [left] = until(before, ProcessRuns, 1)
    launcher = machine.launcher()
    launcher.start(lasting(machine, 7))
    [runs] = until(launcher, ProcessRuns, 1)
    assert runs.id == 7
    wait_for(lambda: not is_running(left.pid), "the kernel ends it with its node")
    launcher.stop_all(grace_s=0)
    assert machine.left() == []


def test_a_node_that_ends_before_it_reports_to_the_next_master_fails_nothing(
    machine: Machine,
) -> None:
    """As if the node did not find the next master, which listens elsewhere."""
    before = machine.launcher()
    before.start(lasting(machine, 0))
    [ran] = until(before, ProcessRuns, 1)
    [node] = machine.left()
    os.kill(int(node), signal.SIGSTOP)
    before.close()
    launcher = machine.launcher()
    launcher.adopt([Known(role="worker", id=0, pid=ran.pid, ran=True)])
    launcher.start(lasting(machine, 1))
    os.kill(int(node), signal.SIGKILL)
    ended, never = until(launcher, (ProcessExit, ProcessNotStarted), 2)
    assert (ended.id, isinstance(ended, ProcessExit) and ended.is_unknown) == (0, True)
    assert (never.id, never.why) == (1, ""), "the master starts it again"
    launcher.start(lasting(machine, 2))
    until(launcher, ProcessRuns, 1)
    launcher.stop_all(grace_s=0)


def test_the_next_master_finds_no_node(machine: Machine) -> None:
    launcher = machine.launcher()
    launcher.adopt([Known(role="worker", id=0, pid=7, ran=True), Known(role="ps", id=1)])
    ended, never = launcher.poll()
    assert isinstance(ended, ProcessExit)
    assert ended.is_unknown
    assert isinstance(never, ProcessNotStarted)
    launcher.start(lasting(machine, 1))
    until(launcher, ProcessRuns, 1)
    launcher.stop_all(grace_s=0)
