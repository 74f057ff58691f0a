"""A model file under the strategy allreduce: the ring reports the progress."""

from __future__ import annotations

import random

import pytest

from master.state.work.tasks import TaskQueue
from tests.unit.master.ring.ring_world import SHARDS, World, made_from
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


@pytest.mark.parametrize("strategy", ["auto", "allreduce"])
def test_workers_are_told_the_data_and_get_no_tasks_of_it(strategy: str) -> None:
    w = World(strategy=strategy)
    answer = w.up()
    assert (answer.strategy, list(answer.cluster.servers)) == ("allreduce", [])
    assert [(s.name, s.records) for s in answer.shards] == [("a", 20), ("b", 11)]
    assert answer.cluster.incarnation == 1
    assert w.job.fleet.alive("ps") == []
    w.meet()
    assert w.job.state == "running"
    assert w.lease(0) is None


def test_the_progress_is_what_members_of_the_newest_ring_tell() -> None:
    w = World(epochs=2)
    w.up()
    w.at(8)
    assert w.job.done() == (0, 0), "in no ring yet"
    w.meet()
    w.at(9, 0)
    assert w.job.done() == (9, 5)
    w.at(6, 1)
    assert w.job.done() == (9, 5), "it never goes back"
    w.at(50, 1, ring=7)
    assert w.job.done() == (9, 5), "another ring's"
    w.at(31)
    assert (w.job.tasks.main.epoch, w.job.tasks.main.progress()) == (1, Watermarks(8, {}))
    w.at(62)
    assert w.job.tasks.trained
    assert w.outcome.state == "finished"


def test_a_death_costs_nothing_while_somebody_has_the_model() -> None:
    w = World()
    w.up()
    w.meet()
    w.at(10)
    w.exit(0)
    assert w.at(10).broken_ring == 1
    w.meet(step=5)
    w.at(12)
    assert w.job.done()[0] == 12
    assert w.job.fleet.incarnation == 1
    w.up()
    assert sorted(w.ring) == [1, 2], "a worker was started in its place"
    w.join(2, 0, -1)
    assert w.at(12, 1).stale_ring == 2
    answer = w.meet(step=6)
    assert list(answer.ring.workers) == [1, 2]
    assert (answer.ring.source, answer.ring.heal, answer.ring.fresh) == (0, True, False)


def test_when_the_last_holder_is_gone_training_goes_back_to_the_checkpoint() -> None:
    w = World(dir="/ck", every=4)
    w.up()
    w.meet()
    w.at(10)
    saved = w.checkpoint(1, 9)
    assert saved.manifest.watermarks == Watermarks(2, {2: 1})
    w.at(20)
    w.exit(0)
    w.exit(1)
    w.up()
    assert w.job.done()[0] == 20, "nobody asked for a new life yet"
    ring = w.meet().ring
    assert (ring.number, ring.fresh, ring.restored_from) == (2, True, str(saved.path))
    assert w.job.done() == (9, 5)
    assert w.job.fleet.incarnation == 2
    w.at(12)
    assert w.job.done()[0] == 12
    assert "going" not in w.job.reason


def test_evaluations_and_the_last_checkpoint_come_from_members_that_are_there() -> None:
    w = World(dir="/ck", eval_records=4)
    w.up()
    w.meet()
    w.exit(0)
    w.up()
    w.meet(step=2)
    w.at(31, 1)
    lease = w.lease(2).leases[0]
    assert lease.kind == pb.TASK_EVALUATE, "it has a model"
    w.done(2, lease, metrics={"states": [pb.MetricState(name="loss", sum=1.0, records=4)]})
    w.tick(0.1)
    assert w.lease(2) is None, "it has not told that the last step came through"
    w.at(31, 2)
    assert w.lease(2).leases[0].kind == pb.TASK_SNAPSHOT


def test_a_worker_outside_the_ring_evaluates_nothing() -> None:
    w = World(eval_records=4, workers=3)
    w.up()
    w.meet()
    w.exit(0)
    w.at(31, 1)
    w.up()
    assert w.lease(3) is None
    assert w.lease(2).leases[0].kind == pb.TASK_EVALUATE


@pytest.mark.parametrize(("left_out", "text"), [(31, "nothing was trained"), (30, "15 of 16")])
def test_a_ring_tells_what_it_left_out(left_out: int, text: str) -> None:
    w = World()
    w.up()
    w.meet()
    w.left_out(8, 8)
    w.left_out(left_out, 31)
    w.tick()
    assert w.outcome.state == ("failed" if left_out == 31 else "finished")
    assert text in w.job.lifecycle.log.after(0)[-2 if left_out < 31 else -1].text


def test_samples_that_members_left_out_are_added_up() -> None:
    w = World()
    w.up()
    w.meet()
    for id, damaged in ((0, 1), (1, 2), (0, 3), (0, 3)):
        w.calls.heartbeat(pb.HeartbeatRequest(worker_id=id, damaged=damaged), w.now)
    assert w.job.damaged == 5
    w.exit(0)
    assert w.job.damaged == 5


def test_a_resumed_job_begins_there() -> None:
    config = World(dir="/ck").config
    w = World(dir="/ck", resume=True, resumed=made_from(config, Watermarks(3, {3: 2})))
    w.up()
    answer = w.meet()
    assert (answer.ring.fresh, answer.ring.restored_from) == (True, "/ck/step-0000000007")
    assert w.job.done()[0] == 14


def test_who_drains_leaves_once_another_has_the_model() -> None:
    w = World(workers=1)
    w.up()
    w.meet()
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=2), w.now)
    w.up()
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=1), w.now)
    w.tick()
    # The newest one goes; it has no model, so nobody has to wait for that.
    assert w.at(2, 1).drain
    assert not w.at(2, 0).drain
    assert w.join(1, 0, -1).leave


def test_the_last_holder_does_not_drain_before_it_gave_the_model_on() -> None:
    w = World(workers=2)
    w.tick()
    w.calls.register(pb.RegisterRequest(worker_id=1), w.now)
    w.ring[1] = 0
    w.up()
    del w.ring[0]  # it imports for long
    w.meet()
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=1), w.now)
    w.tick()
    assert not w.at(2, 1).drain
    w.ring[0] = 0
    w.meet(step=1)
    assert w.at(2, 1).drain
    w.calls.leave_ring(pb.LeaveRingRequest(worker_id=1), w.now)
    assert w.at(2, 0).stale_ring == 2


def test_who_drains_and_is_left_alone_gives_the_model_on_first() -> None:
    w = World(workers=3)
    w.up()
    del w.ring[0]  # it imports for long
    w.meet()
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=2), w.now)
    w.tick()
    assert w.at(2, 2).drain
    w.exit(1)
    assert w.join(0, 0, -1) is None, "there is a model to wait for"
    answer = w.join(2, 1, 2)
    assert (answer.ring.number, list(answer.ring.workers), answer.ring.source) == (2, [2, 0], 0)
    assert (answer.ring.heal, answer.ring.fresh) == (True, False)
    assert w.join(2, 2, 2).leave
    assert list(w.join(0, 2, 2).ring.workers) == [0]
    assert w.job.fleet.incarnation == 1


def test_members_of_a_model_file_report_no_checkpoints() -> None:
    w = World()
    w.up()
    rank_0 = w.meet().ring.workers[0]
    told = pb.ReportCheckpointRequest(worker_id=rank_0, directory="/c/1")
    assert not w.calls.report_checkpoint(told, w.now).accepted
    assert not w.job.checkpoints.shown


def test_a_job_that_starts_its_workers_takes_no_others() -> None:
    w = World()
    with pytest.raises(UsageError, match="not a worker that this job waits for"):
        w.calls.register(pb.RegisterRequest(worker_id=-1), 0.0)


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_that_advances_is_at_every_prefix(seed: int) -> None:
    draw = random.Random(seed)
    space = TaskSpace(
        SHARDS, 4, epochs=3, seed=seed, shuffle=True, batch_size=2, max_steps=draw.choice([0, 31])
    )
    queue = TaskQueue(space, lease_ids=iter(()))
    at = 0
    while not queue.complete:
        ahead = at + draw.randrange(-3, 9)
        queue.advance(ahead)
        at = min(max(at, ahead), space.total_records)
        assert queue.records_done == at
        again = TaskQueue(space, lease_ids=iter(()))
        again.restore(queue.progress())
        assert (again.records_done, again.steps_done) == (at, queue.steps_done)
        if draw.random() < 0.3:
            queue.restore(queue.progress())
    assert queue.steps_done == space.total_steps
