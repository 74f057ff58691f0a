"""The clock of the job stands still while the master does not run."""

from __future__ import annotations

from pathlib import Path

from master.runtime.clock import Clock
from master.state.job.job import Job
from master.state.scripts.script_fleet import ScriptFleet
from master.state.workforce.servers import ServerCommand
from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.wire import master_pb2 as pb


class Machine:
    """Its clock goes on, whatever runs on it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_pause_does_not_count() -> None:
    machine = Machine()
    clock = Clock(machine)
    for _ in range(10):
        machine.now += 0.5
        clock()
    assert clock() == 1005.0
    assert clock.take_pause() == 0.0
    machine.now += 40.0
    assert clock() == 1005.0
    machine.now += 0.5
    assert clock() == 1005.5
    assert clock.take_pause() == 40.0
    assert clock.take_pause() == 0.0, "it is told once"


def test_nobody_is_lost_because_the_master_was_paused() -> None:
    machine = Machine()
    clock = Clock(machine)
    config = JobConfig(
        name="j",
        kind="script",
        model_file="/train.py",
        cluster=ClusterConfig(heartbeat_timeout_s=10),
    )
    fleet = ScriptFleet(ServerCommand(job="j"), workers=1, servers=0)
    job = Job(config, fleet, folder=Path("/job"), wall_offset_s=5)
    job.start(clock())
    job.workforce.register(pb.RegisterRequest(worker_id=-1, pid=7))
    job.members.register(0, 7, clock())
    machine.now += 40.0
    job.tick(clock())
    assert 0 in job.members
    job.lifecycle.paused(clock.take_pause())
    job.lifecycle.note("info", "now", clock())
    assert job.lifecycle.log.after(0)[-1].time == 1045.0, "events have the time of day"
    for _ in range(20):
        machine.now += 0.6
        job.tick(clock())
    assert 0 not in job.members, "its own silence counts"
