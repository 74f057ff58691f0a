"""The machines of a script: which worker runs where, its rank, and when a machine is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from master.runtime.local_node import LocalNode
from master.runtime.machines import Machines
from torch_edl.config import ClusterConfig, JobConfig, Launch
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.processes.launcher import (
    Command,
    Known,
    LauncherEvent,
    MachineJoined,
    MachineLeft,
    ProcessExit,
    ProcessNotStarted,
    ProcessSpec,
    ProcessWaits,
)
from torch_edl.wire import master_pb2 as pb

TIMEOUT_S = 12.0


class Script:
    """The launcher of a script with two workers on each machine, and reports of its nodes."""

    def __init__(self, *, least: int = 1, most: int = 3) -> None:
        self.launch = Launch(min_nodes=least, max_nodes=most, per_node=2)
        self.heard: set[int] = set()
        """Workers that send heartbeats."""
        self.runs: dict[str, dict[int, pb.StartProcess]] = {}
        """Workers of each machine with their orders."""
        self._ahead_s = 0.0
        self.next_master()

    def next_master(self, *known: Known) -> None:
        config = JobConfig(
            name="ctr",
            kind="script",
            model_file="/train.py",
            cluster=ClusterConfig(max_workers=6, heartbeat_timeout_s=TIMEOUT_S),
            launch=self.launch,
        )
        self.launcher = Machines(
            LocalNode(JobFolder("ctr"), incarnation="ab"),
            config,
            incarnation="ab",
            preload=(),
            mark=None,
            clock=lambda: time.monotonic() + self._ahead_s,
        )
        self.launcher.hears = self.heard.__contains__
        self.launcher.adopt(known)
        self.events: list[LauncherEvent] = []

    def start(self, *slots: int, first: int = 0) -> None:
        for id, slot in enumerate(slots, first):
            spec = ProcessSpec(role="worker", id=id, slot=slot, command=Command())
            self.launcher.start(spec)

    def look(self) -> None:
        self.events += self.launcher.poll()

    def of(self, kind: type) -> list[LauncherEvent]:
        self.look()
        found = [each for each in self.events if isinstance(each, kind)]
        self.events = [each for each in self.events if not isinstance(each, kind)]
        return found

    def report(
        self, host: str, *, ended: dict[int, int] | None = None, **more: object
    ) -> pb.NodeReportResponse:
        """Report as the node of a machine, which starts all that it is ordered to."""
        running = self.runs.setdefault(host, {})
        request = pb.NodeReportRequest(
            node=host, incarnation="ab", host=host, slots=2, address=f"at-{host}", port=7, **more
        )  # type: ignore[arg-type]
        for id, code in (ended or {}).items():
            running.pop(id, None)
            request.ended.add(role="worker", id=id, code=code)
        for id in running:
            request.running.add(role="worker", id=id, pid=100 + id)
        answer = self.launcher.nodes.report(request, lambda: True)
        if (orders := self.launcher.nodes._nodes.get(host)) is not None:
            orders.heard_at = time.monotonic() + self._ahead_s
        for order in answer.run:
            if order.HasField("command"):
                running.setdefault(order.id, order)
        return answer

    def all_report(self, *hosts: str) -> None:
        for _ in range(2):
            for host in hosts:
                self.report(host)
            self.look()

    def ranks(self, host: str) -> list[int]:
        return sorted(int(order.command.env["RANK"]) for order in self.runs[host].values())

    def env(self, id: int) -> dict[str, str]:
        (order,) = [orders[id] for orders in self.runs.values() if id in orders]
        return dict(order.command.env)

    def silence(self, seconds: int, *heard: str) -> None:
        """Let time pass in which only these nodes report."""
        for _ in range(seconds):
            self._ahead_s += 1.0
            for host in heard:
                self.report(host)
            self.look()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    JobFolder("ctr").dir.mkdir(parents=True)
    return


def test_workers_wait_for_the_minimum_of_machines_and_have_the_ranks_of_theirs() -> None:
    job = Script(least=2)
    job.start(*range(6))
    job.all_report("a")
    assert job.report("a").why == "waiting for machines: 1 of at least 2 machines have joined"
    assert job.runs["a"] == {}
    waits = job.of(ProcessWaits)
    assert len({each.id for each in waits}) == 6  # type: ignore[union-attr]
    job.all_report("a", "b")
    assert (job.ranks("a"), job.ranks("b")) == ([0, 1], [2, 3])
    assert job.report("a").why == ""
    assert job.env(3) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "at-a",
        "MASTER_PORT": "7",
    }
    job.all_report("a", "b", "c")
    assert job.ranks("c") == [4, 5]
    assert job.env(4)["WORLD_SIZE"] == "6"
    assert [each.host for each in job.of(MachineJoined)] == ["a", "b", "c"]  # type: ignore[union-attr]


def test_a_machine_that_left_before_the_start_leaves_no_gap() -> None:
    job = Script(least=3)
    for host in ("a", "b", "c"):
        if host == "b":
            job.report(host, leaves=True)
        else:
            job.all_report(host)
    job.start(*range(6))
    job.all_report("a", "c", "d")
    assert [job.ranks(host) for host in ("a", "c", "d")] == [[0, 1], [2, 3], [4, 5]]


def test_ranks_do_not_move_and_rank_0_stays_where_it_was() -> None:
    job = Script()
    job.start(0, 1, 2, 3)
    job.all_report("a", "b")
    job.report("b", ended={2: -9})
    job.start(2, first=4)
    job.all_report("a", "b")
    assert job.ranks("b") == [2, 3]
    assert job.env(4)["MASTER_ADDR"] == "at-a"
    # The machine of rank 0 leaves: the others keep their ranks, and its address is the last known.
    job.report("a", ended={0: -15, 1: -15}, leaves=True)
    assert [each.host for each in job.of(MachineLeft)] == ["a"]  # type: ignore[union-attr]
    job.report("b", ended={4: -9})
    job.start(0, 1, 2, first=5)
    job.all_report("b")
    assert job.ranks("b") == [2, 3]
    assert job.env(7)["MASTER_ADDR"] == "at-a"
    assert all(not each.placed for each in job.of(ProcessWaits))  # type: ignore[union-attr]
    job.all_report("b", "c")
    assert job.ranks("c") == [0, 1]
    assert job.env(5)["MASTER_ADDR"] == "at-c"


def test_a_machine_too_many_waits_for_the_place_of_another() -> None:
    job = Script(most=2)
    job.start(0, 1, 2, 3)
    job.all_report("a", "b")
    refused = job.report("c")
    assert (refused.leave, refused.version) == (False, 0)
    assert "the job has its 2 machines" in refused.why
    job.report("b", ended={2: -15, 3: -15}, leaves=True)
    job.look()
    job.start(2, 3, first=4)
    job.all_report("a", "c")
    assert job.ranks("c") == [2, 3]
    assert job.report("b", leaves=True).leave, "one that has left does not join again"


def test_one_machine_runs_as_many_workers_as_are_asked_for() -> None:
    job = Script(most=1)
    job.start(0, 1, 2, 3)
    job.all_report("a")
    assert job.ranks("a") == [0, 1, 2, 3]
    assert (job.env(3)["LOCAL_RANK"], job.env(3)["WORLD_SIZE"]) == ("3", "4")


def test_a_paused_node_is_not_lost_while_one_of_its_workers_is_heard() -> None:
    job = Script()
    job.start(0, 1, 2, 3)
    job.all_report("a", "b")
    job.heard = {2}
    job.launcher.hears = job.heard.__contains__
    job.silence(int(TIMEOUT_S) + 3, "a")
    assert not job.of(MachineLeft)
    job.heard.clear()
    job.silence(1, "a")
    assert [each.host for each in job.of(MachineLeft)] == ["b"]  # type: ignore[union-attr]
    ends = job.of(ProcessExit)
    assert {each.id for each in ends} == {2, 3}  # type: ignore[union-attr]
    # It ends what was lost, and takes part again.
    back = job.report("b")
    assert not back.leave
    assert {each.id: each.grace_s for each in back.stop} == {2: 0.0, 3: 0.0}
    job.report("b", ended={2: -9, 3: -9})
    job.start(2, first=4)
    job.all_report("a", "b")
    assert job.ranks("b") == [2]


def test_a_silent_node_whose_processes_should_all_end_is_not_waited_for_as_long() -> None:
    """The command of a machine was killed with all its workers, and the job is to stop."""
    job = Script()
    job.start(0, 1)
    job.all_report("a")
    for id in (0, 1):
        job.launcher.stop("worker", id, grace_s=30.0)
    job.silence(9)
    assert [each.host for each in job.of(MachineLeft)] == ["a"]  # type: ignore[union-attr]


def test_the_next_master_finds_each_machine_with_its_ranks() -> None:
    job = Script()
    job.start(0, 1, 2, 3)
    job.all_report("a", "b")
    known = [Known(role="worker", id=id, slot=id, ran=True) for id in range(4)]
    never = Known(role="worker", id=9, slot=4)
    job.next_master(*known, never)
    # A machine that joins now does not take the place of one that has not reported yet.
    job.all_report("c", "b")
    job.start(4, first=10)
    job.all_report("c", "b")
    assert (job.ranks("c"), job.ranks("b")) == ([4], [2, 3])
    assert job.env(10)["MASTER_ADDR"] == "at-b", "that of rank 0 is not known yet"
    job.all_report("a")
    assert job.ranks("a") == [0, 1]
    job.heard = {0}
    job.launcher.hears = job.heard.__contains__
    job.silence(int(TIMEOUT_S) + 1, "a", "b", "c")
    assert not job.of(ProcessExit)
    assert [each.id for each in job.of(ProcessNotStarted)] == [9]  # type: ignore[union-attr]


@pytest.mark.parametrize("heard", [False, True])
def test_workers_that_no_machine_reports_after_a_restart_are_lost_unless_they_are_heard(
    heard: bool,
) -> None:
    job = Script()
    known = [Known(role="worker", id=id, slot=id, ran=True) for id in (0, 1)]
    job.heard = {0} if heard else set()
    job.next_master(*known)
    job.silence(int(TIMEOUT_S) + 1)
    lost = {each.id for each in job.of(ProcessExit)}  # type: ignore[union-attr]
    assert lost == ({1} if heard else {0, 1})
