"""What a job has done is kept as it happens, and is what a walk over all workers would find. What
is known of all processes is found again whenever one of them changes."""

from __future__ import annotations

import random

import pytest

from master.state.membership import Membership
from master.state.work.task_scheduler import TaskScheduler
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import EXITED, RUNNING
from master.state.workforce.server_command import ServerCommand
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

WORKERS = 5


def walked(tasks: TaskScheduler, members: Membership) -> tuple[int, int]:
    main = tasks.main
    assert main is not None
    records, steps = main.records_done, main.steps_done
    for member in members:
        open_records, open_steps = main.open_steps(member.id)
        ahead = member.heartbeat.records - member.reported_records
        ahead_steps = member.heartbeat.steps - member.reported_steps
        records += min(max(0, ahead), open_records)
        steps += min(max(0, ahead_steps), open_steps)
    return records, steps


@pytest.mark.parametrize("seed", range(8))
def test_records_and_steps_are_those_of_a_walk_over_all_workers(seed: int) -> None:
    rng = random.Random(seed)
    tasks, members = (
        TaskScheduler(JobConfig(name="j", model_file="m.py")),
        Membership(heartbeat_timeout_s=30),
    )
    space = TaskSpace([Shard("a", 3_000)], 10, batch_size=4)
    tasks.begin(space, None, shards=[Shard("a", 3_000)], identity={}, resumed=None)
    main, told = tasks.main, {}
    assert main is not None
    newest = WORKERS - 1
    for id in range(WORKERS):
        members.register(id, 100, 0.0)
    for now in range(600):
        worker = rng.choice([member.id for member in members])
        member, held = members.get(worker), main.held_by(worker)
        assert member is not None
        match rng.randrange(9):
            case 0 | 1 | 2:
                tasks.lease(worker, [x.id for x in held], now, want=2, draining=False)
            case 3 | 4 if held:
                main.complete_lease(held[0].id, now)
                records, steps = held[0].open_records, space.steps_of(held[0].task.records)
                members.reported(worker, now, steps=steps, records=records)
            case 5 if held:
                main.release(held[-1].id, now, committed=rng.randrange(10))
            case 6:
                records, steps = told.get(worker, (0, 0))
                told[worker] = records, steps = (
                    records + rng.randrange(12),
                    steps + rng.randrange(4),
                )
                beat = pb.HeartbeatRequest(records=records, steps=steps)
                members.heartbeat(member, beat, now)
            case 7 if rng.random() < 0.2:
                newest += 1
                members.register(newest, 100, now)
                members.remove(worker)
                tasks.drop_worker(worker)
            case 8 if rng.random() < 0.05:
                main.restore(Watermarks(main.retired_before, {}))
                members.forget_open_work()
        if rng.random() < 0.3:
            assert tasks.done(members) == walked(tasks, members)
    assert tasks.done(members) == walked(tasks, members)


def test_what_is_found_in_processes_follows_each_change() -> None:
    fleet = Fleet(ServerCommand(job="j"), workers=3, servers=0)
    running = fleet.of_all(lambda: [p.id for p in fleet.alive("worker") if p.state == RUNNING])
    fleet.plan(0.0)
    assert running() == []
    for process in fleet.alive("worker"):
        process.state = RUNNING
    assert running() == [0, 1, 2]
    found = running()
    fleet.alive("worker")[1].heard_at = 3.0  # as with every heartbeat
    assert running() is found
    fleet.alive("worker")[1].state = EXITED
    assert running() == [0, 2]
    states = fleet.to_state()["processes"]
    fleet.alive("worker")[0].pid = 77
    assert states[0].get("pid") is None  # a state that was noted stays as it was
    assert fleet.to_state()["processes"][0]["pid"] == 77
