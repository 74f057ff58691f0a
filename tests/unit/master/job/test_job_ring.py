"""A model file under the strategy allreduce: the ring reports the progress."""

from __future__ import annotations

import pytest

from tests.unit.master.world import World, running
from torch_edl.data.task_space import Shard
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps

SHARDS = [Shard("a", 20), Shard("b", 11)]


def up(**options) -> World:
    """Return a job whose two workers have their data and are in no ring yet."""
    return running(**{"strategy": "allreduce", "workers": 2, "shards": SHARDS} | options)


def ring(**options) -> World:
    w = up(**options)
    w.meet()
    return w


def importing(w: World, worker: int) -> None:
    """Let a worker not have come to the ring yet."""
    del w.rings[worker]


@pytest.mark.parametrize("strategy", ["auto", "allreduce"])
def test_workers_are_told_the_data_and_get_no_tasks_of_it(strategy: str) -> None:
    w = up(strategy=strategy)
    answer = w.start(0)
    assert (answer.strategy, list(answer.cluster.servers)) == ("allreduce", [])
    assert [(s.name, s.records) for s in answer.shards] == [("a", 20), ("b", 11)]
    assert answer.cluster.incarnation == 1
    assert w.fleet.alive("ps") == []
    w.meet()
    assert w.job.state == "running"
    assert w.lease(0) is None


def test_the_progress_is_what_members_of_the_newest_ring_tell() -> None:
    w = up(epochs=2)
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
    w = ring()
    w.at(10)
    w.kill(0)
    assert w.at(10).broken_ring == 1
    w.meet(step=5)
    w.at(12)
    assert w.job.done()[0] == 12
    assert w.fleet.model.incarnation == 1
    w.up()
    assert sorted(w.rings) == [1, 2], "a worker was started in its place"
    w.join(2)
    assert w.at(12, 1).stale_ring == 2
    newest = w.meet(step=6)
    assert list(newest.workers) == [1, 2]
    assert (newest.source, newest.heal, newest.fresh) == (0, True, False)


def test_when_the_last_holder_is_gone_training_goes_back_to_the_checkpoint() -> None:
    w = ring(dir="/ck", every=4)
    w.at(10)
    watermarks = {"retired_before": 2, "tasks": [{"task_id": 2, "offset": 1}]}
    written = ps.Snapshot(files={"f": 1}, watermarks=watermarks, version=3)
    lease = w.task(1)
    assert lease.kind == pb.TASK_SNAPSHOT
    assert w.complete(1, lease, result={"snapshot": written})
    w.tick()
    saved = w.commit()
    assert saved.manifest.watermarks == Watermarks(2, {2: 1})
    w.at(20)
    w.kill(0, 1)
    w.up()
    assert w.job.done()[0] == 20, "nobody asked for a new life yet"
    newest = w.meet()
    assert (newest.number, newest.fresh, newest.restored_from) == (2, True, str(saved.path))
    assert w.job.done() == (9, 5)
    assert w.fleet.model.incarnation == 2
    w.at(12)
    assert w.job.done()[0] == 12
    resumed = up(dir="/ck", resume=True, resumed=saved)
    newest = resumed.meet()
    assert (newest.fresh, newest.restored_from) == (True, str(saved.path))
    assert resumed.job.done()[0] == 9


def test_evaluations_and_the_last_checkpoint_come_from_members_that_are_there() -> None:
    w = ring(dir="/ck", eval_records=4)
    w.kill(0)
    w.up()
    w.meet(step=2)
    w.at(31, 1)
    lease = w.task(2)
    assert lease.kind == pb.TASK_EVALUATE, "it has a model"
    w.do(2, lease)
    w.tick(0.1)
    assert w.lease(2) is None, "it has not told that the last step came through"
    w.at(31, 2)
    assert w.task(2).kind == pb.TASK_SNAPSHOT


def test_a_worker_outside_the_ring_evaluates_nothing() -> None:
    w = ring(eval_records=4, workers=3)
    w.kill(0)
    w.at(31, 1)
    w.up()
    assert w.lease(3) is None
    assert w.task(2).kind == pb.TASK_EVALUATE


@pytest.mark.parametrize(("left_out", "state"), [(31, "failed"), (30, "finished")])
def test_a_ring_tells_what_it_left_out(left_out: int, state: str) -> None:
    w = ring()
    for records, position in ((8, 8), (left_out, 31)):
        w.beat(0, position=position, left_out=records, ring=1)
    w.tick()
    assert w.outcome.state == state
    assert w.said("15 of 16 minibatches", "warning") == (state == "finished")


def test_updates_that_a_script_left_out_are_in_the_status() -> None:
    w = ring()
    w.beat(0, position=8, nan_updates=2, ring=1)
    assert w.status().nan_steps == 2
    assert w.restart().status().nan_steps == 2


def test_samples_that_members_left_out_are_added_up() -> None:
    w = ring()
    for worker, damaged in ((0, 1), (1, 2), (0, 3), (0, 3)):
        w.beat(worker, damaged=damaged)
    assert w.job.damaged == 5
    w.kill(0)
    assert w.job.damaged == 5


def test_the_last_holder_does_not_drain_before_it_gave_the_model_on() -> None:
    w = up()
    importing(w, 0)
    w.meet()
    w.scale(1)
    w.tick()
    assert not w.at(2, 1).drain
    w.rings[0] = 0
    w.meet(step=1)
    assert w.at(2, 1).drain
    w.leave(1)
    assert w.at(2, 0).stale_ring == 2


def test_a_member_at_the_end_with_the_only_model_does_not_drain() -> None:
    w = ring(workers=1)
    assert w.stand_by(0, ring=1, step=9) is None
    w.scale(2)
    w.up()
    w.fleet.leaves(0, w.now, by=100.0)
    w.tick()
    assert not w.beat(0).drain


def test_who_drains_and_is_left_alone_gives_the_model_on_first() -> None:
    w = up(workers=3)
    importing(w, 0)
    w.meet()
    w.scale(2)
    w.tick()
    assert w.at(2, 2).drain
    w.kill(1)
    assert w.join(0) is None, "there is a model to wait for"
    newest = w.join(2, ring=1, step=2).ring
    assert (newest.number, list(newest.workers), newest.source) == (2, [2, 0], 0)
    assert (newest.heal, newest.fresh) == (True, False)
    assert w.join(2, ring=2, step=2).leave
    assert list(w.join(0, ring=2, step=2).ring.workers) == [0]
    assert w.fleet.model.incarnation == 1


def test_members_of_a_model_file_report_no_checkpoints() -> None:
    w = ring()
    assert not w.report_checkpoint(0)
    assert not w.job.checkpoints.shown


def test_a_job_that_starts_its_workers_takes_no_others() -> None:
    with pytest.raises(UsageError, match="worker -1"):
        up().register(1)
