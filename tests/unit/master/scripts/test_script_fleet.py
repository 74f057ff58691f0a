"""The agents that a master on a cluster asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.state.actions import Failure, Start, Stop
from master.state.calls.agent_calls import AgentCalls
from master.state.calls.calls import Calls
from master.state.calls.user_calls import UserCalls
from master.state.job.job import Job
from master.state.scripts.script_fleet import ScriptFleet
from master.state.workforce.processes import CRASH_LIMIT
from master.state.workforce.server_command import ServerCommand
from torch_edl.config import ClusterConfig, JobConfig, KubernetesConfig, TrainConfig
from torch_edl.processes.spec import ProcessExit, ProcessRuns
from torch_edl.wire import master_pb2 as pb


class World:
    """A job of a script in pods, of two workers each."""

    def __init__(self, *, workers: int = 4) -> None:
        config = JobConfig(
            name="j",
            kind="script",
            model_file="/train.py",
            train=TrainConfig(strategy="allreduce"),
            cluster=ClusterConfig(max_workers=workers, heartbeat_timeout_s=10.0),
            platform="kubernetes",
            kubernetes=KubernetesConfig(image="edl"),
        )
        self.fleet = ScriptFleet(
            ServerCommand(job="j"), workers=workers, servers=0, asks=True,
            agents=workers // 2, workers_per_agent=2,
            agent_args=["run", "train.py"], agent_grace_s=20.0,
        )  # fmt: skip
        self.job = Job(config, self.fleet, folder=Path("/job"))
        self.calls = Calls(self.job, cores=2)
        self.user_calls = UserCalls(self.job)
        self.agent_calls = AgentCalls(self.job)
        self.now = 0.0
        self.started: list[int] = []
        self.stopped: list[Stop] = []
        self.job.start(self.now)
        self.tick()

    def tick(self, seconds: float = 0.1) -> None:
        self.now += seconds
        for action in self.job.tick(self.now):
            if isinstance(action, Start):
                assert (action.spec.role, action.spec.args) == ("agent", ["run", "train.py"])
                self.started.append(action.spec.id)
            elif isinstance(action, Stop):
                self.stopped.append(action)

    def runs(self, agent: int) -> None:
        self.job.apply(ProcessRuns(role="agent", id=agent, node="n"), self.now)

    def report(self, agent: int, *pids: int, done: bool = False) -> pb.AgentReportResponse:
        workers = [pb.AgentWorker(local_rank=rank, pid=pid) for rank, pid in enumerate(pids)]
        request = pb.AgentReportRequest(
            node=f"agent-{agent}", pid=1, host="h", address="10.0.0.1", port=7, workers=workers,
            done=done,
        )  # fmt: skip
        return self.agent_calls.agent_report(request, self.now)

    def register(self, agent: int, rank: int) -> int:
        request = pb.RegisterRequest(
            worker_id=-1, pid=100 + rank, host="h", node=f"agent-{agent}", local_rank=rank
        )
        return self.calls.register(request, self.now).worker_id

    def exit(self, agent: int, **how: object) -> None:
        exit = ProcessExit(role="agent", id=agent, **how)
        self.job.exited(exit, self.now, log=f"pod/agent-{agent}")


def test_as_many_agents_as_have_the_workers_are_kept_alive() -> None:
    w = World()
    assert w.started == [0, 1]
    for agent in (0, 1):
        w.runs(agent)
        w.report(agent, 100)
    lost = w.register(1, 0)
    w.exit(1, code=137, why="preempted", own_fault=False)
    assert lost not in w.job.members  # at once, not after a timeout
    w.tick()
    assert w.started == [0, 1, 2]
    assert w.report(0, 100).nodes == 1
    assert w.report(2).node_rank == 1  # the place of the one that is gone


def test_pods_that_wait_for_room_for_hours_do_not_end_the_job() -> None:
    w = World()
    for _ in range(100):
        w.tick(100.0)
    assert w.job.lifecycle.outcome is None
    w.runs(0)
    w.report(0, 100)
    w.exit(0, code=143, why="evicted", own_fault=False)
    for _ in range(100):
        w.tick(100.0)
    assert w.job.lifecycle.outcome is None


def test_agents_that_crash_before_they_report_end_the_job() -> None:
    w = World(workers=2)
    for agent in range(CRASH_LIMIT):
        w.tick(60.0)
        w.runs(agent)
        w.exit(agent, code=1, why="no module named torch_edl")
    outcome = w.job.lifecycle.outcome
    assert outcome is not None
    assert "no module named torch_edl" in outcome.error


def test_fewer_workers_end_the_last_agents_with_their_grace() -> None:
    w = World(workers=6)
    assert w.started == [0, 1, 2]
    for agent in (0, 1):
        w.runs(agent)
        w.report(agent, 100)
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=3), w.now)
    w.tick()
    w.tick()
    assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(2, 20.0)]
    w.exit(2, code=143)
    w.tick()
    assert w.started == [0, 1, 2]
    assert w.fleet.workers_wanted == 4


def test_an_agent_at_the_end_of_the_script_is_not_replaced() -> None:
    w = World()
    for agent in (0, 1):
        w.runs(agent)
        w.report(agent, 100)
        w.report(agent, done=True)
    w.tick()
    outcome = w.job.lifecycle.outcome
    assert outcome is not None
    assert outcome.state == "finished"
    assert w.stopped == []  # they hear it, and leave
    w.exit(0, code=0)
    w.tick()
    assert w.started == [0, 1]


def test_the_next_master_knows_the_agents() -> None:
    w = World()
    w.runs(0)
    w.report(0, 100)
    again = ScriptFleet(
        ServerCommand(job="j"), workers=4, servers=0, agents=2, workers_per_agent=2, asks=True
    )
    again.from_state(w.fleet.to_state(), 0.0)
    assert [p.name for p in again.launched()] == ["agent-0", "agent-1"]
    assert again.plan(1.0) == []
    result = again.exited(ProcessExit(role="agent", id=0, code=9, why="oops"), 2.0, log="")
    assert not isinstance(result, Failure)
    started = again.plan(100.0)
    assert [each.spec.id for each in started if isinstance(each, Start)] == [2]


@pytest.mark.parametrize("code", [143, -15])
def test_sigterm_is_no_failure(code: int) -> None:
    w = World()
    for _ in range(50):
        agent = w.started[-1]
        w.runs(agent)
        w.exit(agent, code=code)
        w.tick(60.0)
    assert w.job.lifecycle.outcome is None
