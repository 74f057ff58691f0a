"""The agents that a master on a cluster asks for."""

from __future__ import annotations

from typing import Any

import pytest

from master.state.workforce.deaths import CRASH_LIMIT
from tests.unit.master.script_jobs import script
from tests.unit.master.world import World
from torch_edl.processes.launcher import ProcessRuns
from torch_edl.wire import master_pb2 as pb


def job(workers: int = 4) -> World:
    """Return the job of a script in pods of two workers each."""
    return script(workers=workers, cluster=True, agents=workers // 2)


def started(w: World) -> list[int]:
    assert {(spec.role, *spec.args) for spec in w.started} == {("agent", "run", "train.py")}
    return [spec.id for spec in w.started]


def report(w: World, agent: int, *pids: int, **fields: Any) -> pb.AgentReportResponse:
    """Let an agent run and report its workers."""
    w.apply(ProcessRuns(role="agent", id=agent, node="n"))
    workers = [pb.AgentWorker(local_rank=rank, pid=pid) for rank, pid in enumerate(pids)]
    return w.agent(f"agent-{agent}", *workers, **fields)


def test_as_many_agents_as_have_the_workers_are_kept_alive() -> None:
    w = job()
    assert started(w) == [0, 1]
    for agent in (0, 1):
        report(w, agent, 100)
    lost = w.register(100, node="agent-1")
    w.exit("agent", 1, code=137, why="preempted", own_fault=False)
    assert lost not in w.job.members  # at once, not after a timeout
    w.tick()
    assert started(w) == [0, 1, 2]
    assert report(w, 0, 100).nodes == 1
    assert report(w, 2).node_rank == 1  # the place of the one that is gone


def test_pods_that_wait_for_room_for_hours_do_not_end_the_job() -> None:
    w = job()
    for round in range(2):
        for _ in range(100):
            w.tick(100.0)
        assert w.outcome is None
        if not round:
            report(w, 0, 100)
            w.exit("agent", 0, code=143, why="evicted", own_fault=False)


def test_agents_that_crash_before_they_report_end_the_job() -> None:
    w = job(workers=2)
    for agent in range(CRASH_LIMIT):
        assert w.outcome is None
        w.tick(60.0)
        w.apply(ProcessRuns(role="agent", id=agent, node="n"))
        w.exit("agent", agent, code=1, why="no module named torch_edl")
    assert "no module named torch_edl" in w.outcome.error


def test_fewer_workers_end_the_last_agents_with_their_grace() -> None:
    w = job(workers=6)
    assert started(w) == [0, 1, 2]
    for agent in (0, 1):
        report(w, agent, 100)
    w.scale(3)
    for _ in range(3):
        w.tick()
    assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(2, 20.0)]
    assert started(w) == [0, 1, 2]
    assert w.fleet.workers_wanted == 4


def test_an_agent_at_the_end_of_the_script_is_not_replaced() -> None:
    w = job()
    for agent in (0, 1):
        report(w, agent, 100)
        report(w, agent, done=True)
    w.tick()
    assert w.outcome.state == "finished"
    assert w.stopped == []  # they hear it, and leave
    w.exit("agent", 0, code=0)
    w.tick()
    assert started(w) == [0, 1]


def test_once_an_agent_has_completed_the_script_none_is_replaced() -> None:
    w = job(workers=6)
    for agent in range(3):
        report(w, agent, 100)
    w.exit("agent", 2, code=0, why="preempted", own_fault=False)
    w.tick()
    assert started(w) == [0, 1, 2, 3], "that was no end of the script"
    report(w, 3, 100)
    report(w, 0, done=True)
    w.exit("agent", 0, code=0)
    for each in (w, w.restart()):
        each.exit("agent", 1, code=143, why="preempted", own_fault=False)
        each.tick(1)
        assert each.outcome is None
        assert len(each.started) == (4 if each is w else 0)


def test_a_pod_that_fails_after_another_has_completed_the_script_fails_the_job() -> None:
    w = job()
    for agent in (0, 1):
        report(w, agent, 100)
    report(w, 0, done=True)
    w.exit("agent", 0, code=0)
    w.exit("agent", 1, code=1, why="out of memory")
    w.tick()
    assert w.outcome.state == "failed"
    assert w.outcome.error.startswith("agent-1 ended with exit code 1")
    assert w.outcome.error.endswith("before its workers completed the script")


def test_the_next_master_knows_the_agents() -> None:
    w = job()
    report(w, 0, 100)
    again = w.restart()
    assert [p.name for p in again.fleet.launched()] == ["agent-0", "agent-1"]
    assert not again.started
    again.exit("agent", 0, code=9, why="oops")
    assert again.outcome is None
    again.tick(100.0)
    assert started(again) == [2]


@pytest.mark.parametrize("code", [143, -15])
def test_sigterm_is_no_failure(code: int) -> None:
    w = job()
    for _ in range(50):
        agent = w.started[-1].id
        w.apply(ProcessRuns(role="agent", id=agent, node="n"))
        w.exit("agent", agent, code=code)
        w.tick(60.0)
    assert w.outcome is None
