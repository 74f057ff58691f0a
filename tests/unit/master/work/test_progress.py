"""What a job has done: tasks as workers report them, and the position of a script."""

from __future__ import annotations

import random

import pytest

from master.state.membership import Membership
from master.state.work.task_scheduler import TaskScheduler
from tests.unit.master.script_jobs import ring_of_two
from tests.unit.master.world import World
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
                tasks.grant(
                    pb.LeaseRequest(worker_id=worker, held=[x.id for x in held], want=2), now
                )
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


class TestScripts:
    """The progress of a script in a ring is what its members report."""

    def tell(self, w: World, index: int, position: int, *, of: int = 100, **more: int) -> None:
        w.beat(0, ring=1, pass_index=index, position=position, pass_records=of, **more)

    def seen(self, w: World) -> tuple[int, int, int, int, int]:
        status = w.status()
        done, total = status.records.done, status.records.total
        return status.epoch, status.epochs, done, total, status.records.begun

    @pytest.fixture
    def w(self) -> World:
        return ring_of_two()

    def test_a_loop_of_the_scripts_own_shows_the_pass_at_hand(self, w: World) -> None:
        self.tell(w, 0, 40, steps=2)
        assert self.seen(w) == (0, 0, 40, 100, 0)
        self.tell(w, 0, 30, steps=3)  # another member lags behind
        # Pass 1 was an evaluation; progress may begin and end between two heartbeats.
        self.tell(w, 2, 20, epoch=1, records_before=100, steps=9)
        assert self.seen(w) == (1, 0, 120, 200, 100)
        assert w.job.done() == (120, 9)
        self.tell(w, 0, 100)  # a late word of the pass before
        assert self.seen(w) == (1, 0, 120, 200, 100)
        for worker in (0, 1):
            w.leave(worker, finished=True)
        last = {"pass_index": 2, "position": 100, "pass_records": 100, "epoch": 2}
        w.beat(0, **last, records_before=100, steps=13)
        w.complete_script()
        assert self.seen(w) == (2, 2, 200, 200, 100), "its last words"
        assert w.status().steps == 13

    def test_epochs_that_the_script_told_of_count_from_the_beginning(self, w: World) -> None:
        self.tell(w, 0, 40, epochs=3, records_to_come=200)
        assert self.seen(w) == (0, 3, 40, 300, 0)
        self.tell(w, 2, 100, epoch=2, epochs=3, records_before=100, records_to_come=100)
        assert self.seen(w) == (2, 3, 200, 300, 0)

    def test_a_stream_has_no_total(self, w: World) -> None:
        self.tell(w, 0, 40, of=0)
        assert self.seen(w) == (0, 0, 40, 0, 0)
        self.tell(w, 1, 10, of=0, epoch=1, records_before=40)
        assert self.seen(w) == (1, 0, 50, 0, 40)
