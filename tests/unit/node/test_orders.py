"""Orders of a node: reports and answers that are repeated, late, or of another master."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.waiting import HANG_S, wait_for
from torch_edl.node.orders import Nodes, Orders, spec_of
from torch_edl.processes.launcher import (
    Command,
    Known,
    ProcessExit,
    ProcessFails,
    ProcessNotStarted,
    ProcessRuns,
    ProcessSpec,
)
from torch_edl.wire import master_pb2 as pb


def spec(id: int, role: str = "worker") -> ProcessSpec:
    return ProcessSpec(role=role, id=id, module="m", args=["--id", str(id)])


class Desk:
    """The side of the master, and reports of a node as a test wants them."""

    def __init__(self) -> None:
        self.nodes = Nodes("new")
        self.orders = Orders()
        self.nodes.add("node", self.orders)

    def report(
        self,
        running: dict[int, int] | None = None,
        ended: dict[int, int] | None = None,
        **more: Any,
    ) -> pb.NodeReportResponse:
        """Report pids of running workers, and exit codes of ended ones."""
        request = pb.NodeReportRequest(**{"node": "node", "incarnation": "new", **more})
        for id, pid in (running or {}).items():
            request.running.add(role="worker", id=id, pid=pid)
        for id, code in (ended or {}).items():
            request.ended.add(role="worker", id=id, code=code)
        return self.nodes.report(request, lambda: True)

    def events(self) -> list[Any]:
        return self.orders.collect()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def run(answer: pb.NodeReportResponse) -> list[int]:
    return [each.id for each in answer.run]


def stop(answer: pb.NodeReportResponse) -> dict[int, float]:
    return {each.id: each.grace_s for each in answer.stop}


def test_an_order_is_repeated_until_the_end_and_the_end_counts_once(desk: Desk) -> None:
    desk.orders.start(spec(0))
    for _ in range(2):
        answer = desk.report()
        assert [(e.role, e.id, e.module, list(e.args)) for e in answer.run] == [
            ("worker", 0, "m", ["--id", "0"])
        ]
    desk.report({0: 77})
    desk.report({0: 77})
    assert desk.events() == [ProcessRuns(role="worker", id=0, pid=77)]
    assert run(desk.report(ended={0: -9})) == [0]
    assert desk.events() == [ProcessExit(role="worker", id=0, signal=9)]
    desk.nodes.stored()
    assert run(desk.report(ended={0: -9})) == []
    assert run(desk.report(ended={0: -9})) == [], "the acknowledgement was lost"
    assert desk.events() == []
    assert stop(desk.report({0: 77})) == {0: 0.0}, "a report from before its end comes late"
    assert desk.events() == []


def test_an_end_is_acknowledged_once_it_is_in_the_stored_state(desk: Desk) -> None:
    """A master that is killed before leaves the end to its successor."""
    desk.orders.start(spec(0))
    desk.report({0: 77})
    assert run(desk.report(ended={0: 0})) == [0]
    desk.nodes.stored()  # a state from before the event was collected
    assert run(desk.report(ended={0: 0})) == [0]
    assert len(desk.events()) == 2
    assert run(desk.report(ended={0: 0})) == [0], "collected, and not stored"
    desk.nodes.stored()
    answered = threading.Thread(target=lambda: desk.report(ended={0: 0}, waits=True))
    answered.start()
    answered.join(1.0)
    assert not answered.is_alive(), "the node need not wait for other orders"


def test_the_ends_of_one_report_are_told_in_their_order(desk: Desk) -> None:
    for id in (0, 1):
        desk.orders.start(spec(id))
    desk.report({0: 70, 1: 71})
    desk.events()
    desk.report(ended={1: 1, 0: 1})
    assert [event.id for event in desk.events()] == [1, 0]


def test_a_process_that_is_about_to_fail_is_told_once(desk: Desk) -> None:
    desk.orders.start(spec(0))
    request = pb.NodeReportRequest(node="node", incarnation="new", address="a", port=7)
    request.running.add(role="worker", id=0, pid=7, failing=True, log="/l")
    for _ in range(2):
        desk.nodes.report(request, lambda: True)
    fails, runs = desk.events()
    assert fails == ProcessFails(role="worker", id=0)
    assert runs == ProcessRuns(role="worker", id=0, pid=7, log="/l")
    assert desk.orders.address == ("a", 7)


def test_one_that_is_stopped_before_the_node_knows_of_it_has_ended(desk: Desk) -> None:
    desk.orders.start(spec(0))
    desk.orders.stop("worker", 0, grace_s=2.0, now=0.0)
    assert desk.events() == [ProcessExit(role="worker", id=0, code=143)]
    assert (run(desk.report()), stop(desk.report())) == ([], {})


def test_a_grace_period_becomes_shorter_only_and_ends_overdue(desk: Desk) -> None:
    desk.orders.start(spec(0))
    desk.report()
    for grace_s, then in ((30.0, 30.0), (2.0, 2.0), (10.0, 2.0)):
        desk.orders.stop("worker", 0, grace_s=grace_s, now=100.0)
        assert stop(desk.report({0: 7})) == {0: then}
    assert not desk.orders.overdue(110.0)
    assert desk.orders.overdue(118.0)


def test_the_next_master_hears_what_runs_has_ended_and_never_began(desk: Desk) -> None:
    desk.orders.adopt(Known(role="worker", id=0, pid=70, ran=True))
    desk.orders.adopt(Known(role="worker", id=1))
    desk.orders.adopt(Known(role="worker", id=2))
    answer = desk.report({0: 70}, {1: 1})
    assert desk.events() == [
        ProcessExit(role="worker", id=1, code=1),
        ProcessRuns(role="worker", id=0, pid=70),
        ProcessNotStarted(role="worker", id=2),
    ]
    assert run(answer) == [0, 1]
    # The order of the old master reached the node after all.
    assert stop(desk.report({0: 70, 2: 72})) == {2: 0.0}


def test_a_process_that_cannot_be_started_says_why(desk: Desk) -> None:
    desk.orders.start(spec(0))
    desk.report()
    request = pb.NodeReportRequest(node="node", incarnation="new")
    request.ended.add(role="worker", id=0, not_started=True, why="no memory")
    desk.nodes.report(request, lambda: True)
    assert desk.events() == [ProcessNotStarted(role="worker", id=0, why="no memory")]


@pytest.mark.parametrize("other", [{"node": "other"}, {"incarnation": "old"}])
def test_an_unknown_node_leaves_and_its_words_do_not_count(
    desk: Desk, other: dict[str, str]
) -> None:
    desk.orders.start(spec(0))
    assert desk.report(ended={0: 1}, **other) == pb.NodeReportResponse(leave=True)
    assert desk.events() == []


@pytest.mark.parametrize("change", ["start", "stop", "end", "remove"])
def test_a_waiting_report_is_answered_with_the_next_change(desk: Desk, change: str) -> None:
    desk.orders.start(spec(0))
    version = desk.report().version
    answers: list[pb.NodeReportResponse] = []
    waits = threading.Thread(
        target=lambda: answers.append(desk.report({0: 7}, waits=True, version=version))
    )
    waits.start()
    wait_for(lambda: desk.orders.events, "the report")
    with desk.nodes.changed:
        if change == "start":
            desk.orders.start(spec(1))
        elif change == "stop":
            desk.orders.stop("worker", 0, grace_s=1.0, now=0.0)
        elif change == "end":
            desk.orders.end()
        else:
            desk.nodes.remove("node")
        desk.nodes.changed.notify_all()
    waits.join(HANG_S)
    [answer] = answers
    assert answer.leave == (change in ("end", "remove"))
    assert (1 in run(answer)) == (change == "start")
    assert (0 in stop(answer)) == (change == "stop")


def test_a_command_reaches_the_node_whole_and_its_end_the_master(desk: Desk) -> None:
    command = Command(
        words=("train.py", "--lr", "1"),
        env={"RANK": "0"},
        stdout="out",
        stderr="err",
        error_file="error.json",
        terminates_group=True,
    )
    wanted = ProcessSpec(role="worker", id=0, command=command)
    desk.orders.start(wanted)
    [order] = desk.report().run
    assert spec_of(order) == wanted
    desk.report(running={0: 7})
    request = pb.NodeReportRequest(node="node", incarnation="new")
    request.ended.add(role="worker", id=0, code=0, open_loop="")
    desk.nodes.report(request, lambda: True)
    assert desk.events()[-1] == ProcessExit(role="worker", id=0, code=0, open_loop="")
