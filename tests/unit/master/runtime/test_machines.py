"""The launcher of a job on several machines: real nodes, which join, leave and are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from master.runtime.machines import Machines
from tests.machine import SeveralMachines
from tests.waiting import is_running, wait_for
from torch_edl.config import Experiment
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.events import MachineJoined, MachineLeft
from torch_edl.processes.launcher import (
    Known,
    LauncherEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRuns,
    ProcessSpec,
    ProcessWaits,
)
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

# The tests look at the child processes of nodes.
pytestmark = pytest.mark.executed

TIMEOUT_S = 3.0
POLITE = "import signal, os, time; signal.signal(15, lambda *_: os._exit(143)); time.sleep(1000)"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeveralMachines]:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    made = SeveralMachines(tmp_path, least=2, timeout_s=TIMEOUT_S)
    yield made
    made.close()


class Job:
    """A launcher and all events that it has reported."""

    def __init__(self, place: SeveralMachines) -> None:
        self.place, self.launcher = place, place.launcher()
        self.events: list[LauncherEvent] = []

    def start(self, *names: str, apart: tuple[int, ...] = ()) -> None:
        for name in names:
            role, _, id = name.partition("-")
            args = ["-n", "1", "-r", "1", POLITE]
            self.launcher.start(
                ProcessSpec(
                    role=role,
                    id=int(id),
                    module="timeit",
                    args=args,
                    env=self.place.env,
                    apart=apart,
                )
            )

    def look(self) -> None:
        self.events += self.launcher.poll()

    def of(self, kind: type) -> list[LauncherEvent]:
        self.look()
        return [each for each in self.events if isinstance(each, kind)]

    def until(self, kind: type, count: int) -> list[LauncherEvent]:
        wait_for(lambda: len(self.of(kind)) >= count, lambda: f"{count} {kind}: {self.events}")
        found = self.of(kind)
        assert len(found) == count, self.events
        return found

    def where(self) -> dict[str, str]:
        """Return the machine of each process that runs; empty for this one."""
        runs = {f"{e.role}-{e.id}": e.node for e in self.of(ProcessRuns)}  # type: ignore[union-attr]
        ended = {f"{e.role}-{e.id}" for e in self.of(ProcessExit)}  # type: ignore[union-attr]
        return {name: host for name, host in runs.items() if name not in ended}


def test_processes_wait_for_the_minimum_of_machines_and_are_spread(place: SeveralMachines) -> None:
    job = Job(place)
    job.start("ps-0")
    job.start("ps-1", apart=(0,))
    job.start(*(f"worker-{id}" for id in range(5)))
    job.look()
    waits = job.of(ProcessWaits)
    assert len(waits) == 7
    assert "1 of at least 2" in waits[0].why  # type: ignore[union-attr]
    assert place.config.cluster.endpoint in waits[0].fix  # type: ignore[union-attr]
    place.join("b")
    [joined] = job.until(MachineJoined, 1)
    assert joined == MachineJoined(host="b", slots=2)
    wait_for(lambda: len(job.where()) == 6, lambda: job.events)
    where = job.where()
    assert {where["ps-0"], where["ps-1"]} == {"", "b"}
    assert sorted(where[f"worker-{id}"] for id in range(4)) == ["", "", "b", "b"]
    assert "worker-4" not in where
    place.join("c", slots=1)
    wait_for(lambda: len(job.where()) == 7, lambda: job.events)
    assert job.where()["worker-4"] == "c"
    job.launcher.stop_all(grace_s=5.0)
    assert place.left() == []
    assert [node.wait() for node in place.nodes] == [0, 0]


def test_a_killed_machine_is_lost_with_its_processes(place: SeveralMachines) -> None:
    job = Job(place)
    node = place.join("b")
    job.start("worker-0", "worker-1", "worker-2")
    wait_for(lambda: len(job.where()) == 3, lambda: job.events)
    gone = [name for name, host in job.where().items() if host == "b"]
    node.kill()
    [left] = job.until(MachineLeft, 1)
    assert isinstance(left, MachineLeft)
    assert "no report from b" in left.why
    ends = job.until(ProcessExit, len(gone))
    assert {f"{e.role}-{e.id}" for e in ends} == set(gone)  # type: ignore[union-attr]
    assert all(e.was_taken and e.node == "b" for e in ends)  # type: ignore[union-attr]
    job.start("worker-3", "worker-4")
    wait_for(lambda: job.of(ProcessWaits), "one of them has no room")
    place.join("c")
    wait_for(lambda: "c" in job.where().values(), lambda: job.events)


def test_a_machine_that_comes_back_ends_its_processes(place: SeveralMachines) -> None:
    job = Job(place)
    node = place.join("b")
    job.start("worker-0", "worker-1")
    wait_for(lambda: "b" in job.where().values(), lambda: job.events)
    [child] = psutil.Process(node.pid).children()
    os.kill(node.pid, signal.SIGSTOP)  # its link is down, as far as the master can tell
    job.until(MachineLeft, 1)
    assert child.is_running()
    os.kill(node.pid, signal.SIGCONT)
    wait_for(lambda: (job.look(), node.poll())[1] is not None, "the node ends")
    assert node.returncode == 1
    assert not is_running(child.pid)
    assert "declared lost" in place.log("output of the node on b")


def test_a_machine_that_leaves_ends_its_processes_first(place: SeveralMachines) -> None:
    job = Job(place)
    node = place.join("b")
    job.start("worker-0", "worker-1")
    wait_for(lambda: "b" in job.where().values(), lambda: job.events)
    node.send_signal(signal.SIGINT)
    wait_for(lambda: (job.look(), node.poll())[1] is not None, "the node ends")
    assert node.returncode == 130
    [end] = job.until(ProcessExit, 1)
    assert isinstance(end, ProcessExit)
    assert end.was_terminated
    assert end.node == "b"
    [left] = job.until(MachineLeft, 1)
    assert left == MachineLeft(host="b")
    job.start("worker-2", "worker-3")  # one of them has no room
    job.look()
    assert job.of(ProcessWaits)


def test_the_next_master_claims_what_the_nodes_report(place: SeveralMachines) -> None:
    first = Job(place)
    lost = place.join("b")
    place.join("c")
    names = [f"worker-{id}" for id in range(6)]
    first.start("ps-0", *names)
    wait_for(lambda: len(first.where()) == 7, lambda: first.events)
    where = first.where()
    first.launcher.close()
    lost.kill()
    lost.wait()
    job = Job(place)
    known = [("ps", 0), *(("worker", id) for id in range(6))]
    never = Known(role="worker", id=9)
    job.launcher.adopt([*(Known(role=role, id=id, ran=True) for role, id in known), never])
    stopped = next(int(n[-1]) for n in names if where[n] == "c")
    job.launcher.stop("worker", stopped, grace_s=5.0)  # before a node has reported it
    ends = job.until(ProcessExit, 1 + list(where.values()).count("b"))
    assert {f"{e.role}-{e.id}" for e in ends} == {  # type: ignore[union-attr]
        f"worker-{stopped}",
        *(name for name, host in where.items() if host == "b"),
    }
    assert [e.id for e in job.until(ProcessNotStarted, 1)] == [9]  # type: ignore[union-attr]
    stay = {name for name, host in where.items() if host != "b"} - {f"worker-{stopped}"}
    assert set(job.where()) == stay
    job.launcher.stop_all(grace_s=5.0)
    assert place.left() == []


def test_who_may_not_join_is_told_why(place: SeveralMachines) -> None:
    job = Job(place)
    experiment = Experiment(
        script="/a/model.py", args=(), folder="/a", machine="m", rdzv_id="none", digest="1"
    )
    place.config = replace(place.config, experiment=experiment)
    job.launcher = place.launcher()
    assert isinstance(job.launcher, Machines)

    def answer(**fields: object) -> pb.NodeReportResponse:
        request = pb.NodeReportRequest(**fields)  # type: ignore[arg-type]
        return job.launcher.nodes.report(request, lambda: True)

    told = answer(experiment=pb.Experiment(script="/a/other.py", machine="m", rdzv_id="none"))
    assert told.leave
    assert "script /a/model.py there, /a/other.py here" in told.why
    told = answer(node="x", incarnation="of another life")
    assert told.leave
    assert "anew" in told.why
    hello = answer()
    assert not hello.leave
    assert (hello.job.name, hello.job.incarnation) == ("ctr", "ab")
    assert not answer(node="b", incarnation="ab", host="b").why
    assert not answer(node="c", incarnation="ab", host="c").why
    full = answer(node="d", incarnation="ab", host="d")
    assert not full.leave
    assert "has its 3 machines" in full.why
    job.launcher.stop_all(grace_s=0)


def test_a_job_of_one_machine_takes_no_other(place: SeveralMachines) -> None:
    one = super(SeveralMachines, place).launcher()
    stub = Stub(services.NODES, place.env[ENV_MASTER], place.env[ENV_TOKEN])
    answer = stub.call(pb.NodeReportRequest(), timeout_s=20)
    stub.close()
    assert answer.leave
    assert not answer.HasField("job")
    one.stop_all(grace_s=0)
