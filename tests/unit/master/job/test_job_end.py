"""How the job of a model file ends."""

from __future__ import annotations

import pytest

from master.state.actions import (
    CheckpointFailed,
    CommitLocal,
    Flush,
    Flushed,
    SaveServers,
)
from master.state.calls import server_calls, worker_calls
from master.state.workforce.processes import RUNNING
from tests.unit.master.said import DRAIN
from tests.unit.master.world import SNAPSHOT, running
from torch_edl.wire import master_pb2 as pb


class TestLeftOut:
    """Minibatches that ``--on-nan skip`` left out."""

    @pytest.mark.parametrize(
        ("nan", "state", "warns"),
        [(1, "finished", 0), (2, "finished", 1), (11, "finished", 1), (100, "failed", 0)],
    )
    def test_many_are_worth_a_word_and_all_a_failure(self, nan, state, warns):
        w = running()  # 16 minibatches
        while (answer := w.lease()) is not None and answer.leases:
            for lease in answer.leases:
                steps = -(-(lease.end - lease.start) // 2)
                w.complete(0, lease, steps=steps, nan_steps=min(nan, steps))
                nan -= min(nan, steps)
        w.tick()
        assert w.outcome.state == state
        assert w.said("--on-nan", "warning") == warns
        assert ("16 minibatches" in w.outcome.error) == (state == "failed")

    def test_what_a_lost_worker_did_may_have_been_trained(self):
        w = running()
        lease = w.task()
        w.kill(0)
        w.all_up()
        while (answer := w.lease(1)) is not None and answer.leases:
            for again in answer.leases:
                if again.task_id == lease.task_id:  # all of it is in the model
                    w.complete(1, again, records=0)
                else:
                    steps = -(-(again.end - again.start) // 2)
                    w.complete(1, again, steps=steps, nan_steps=steps)
        w.tick()
        assert w.outcome.state == "finished"


@pytest.mark.parametrize("over", [False, True])
def test_only_who_is_asked_by_others_is_told_of(over):
    w = running()
    if over:
        w.job.lifecycle.fail("no good", w.now)
    w.beat(leaving=True)
    assert w.said("worker-0 was asked to leave (SIGTERM)") == (not over)


@pytest.mark.parametrize(("strategy", "again"), [("ps", 5), ("allreduce", 0)])
def test_a_preempted_worker_tells_what_it_costs(strategy, again):
    """Records without a report are trained again; in a ring, the others have them."""
    w = running(workers=2, strategy=strategy)
    w.beat(0, records=5)
    w.beat(0, records=5, leaving=True, notice="/f exists")
    assert w.said("worker-0 is preempted (/f exists): it returns its tasks") == 1
    w.now += 1.5
    w.exit("worker", 0, code=0)
    assert w.said(f"preempted: left in 1.5 s, {again} of its records are trained again") == 1
    assert w.job.lifecycle.outages.losses["worker"] == 0


def test_a_notice_that_stands_on_the_machine_of_new_workers_slows_their_starts():
    w = running()
    for worker in range(3):
        w.beat(worker, leaving=True, notice="/f exists")
        w.exit("worker", worker, code=0)
        w.tick()
        assert not w.fleet.alive("worker")
        w.pass_time(10)
        w.all_up()
        assert [p.id for p in w.fleet.alive("worker")] == [worker + 1]
    assert w.outcome is None


def test_a_last_checkpoint_that_fails_three_times_fails_the_job():
    w = running(dir="/ck")
    w.work()
    for count in (1, 2, 3):
        assert w.outcome is None
        effect = w.effect(SaveServers)
        w.apply(CheckpointFailed("No space left on device", effect.incarnation))
        if count < 3:
            w.tick()
            assert w.actions == []
            w.pass_time(5.0)
    assert "No space left" in w.outcome.error


def test_a_periodic_one_that_fails_is_tried_again_soon():
    w = running(dir="/ck", every=4)
    w.work(tasks=2)
    w.tick()
    w.apply(CheckpointFailed("disk", w.effect(SaveServers).incarnation))
    w.tick(4.9)
    assert w.actions == []
    w.tick(0.1)
    w.effect(SaveServers)
    assert w.outcome is None


class TestStop:
    def test_it_ends_everything_at_once_where_nothing_is_trained(self):
        w = running(workers=2, dir="/ck")
        w.job.stop("SIGTERM", w.now)
        w.tick()
        w.tick()
        assert (w.job.state, w.fleet.alive(), w.actions) == ("stopped", [], [])

    def test_it_keeps_what_servers_hold(self):
        w = running(workers=2, mode="sync", eval_records=4, dir="/ck", output="/out")
        w.work(tasks=3)
        w.job.stop("SIGINT", w.now)
        w.tick()
        assert w.job.state == "stopping"
        assert w.lease(0).next == DRAIN
        assert (w.actions, w.fleet.workers_wanted) == ([], 2)
        for worker in (0, 1):
            w.exit("worker", worker, code=0)
        w.tick()
        w.effect(Flush)
        w.apply(Flushed(1, success=True))
        w.tick()
        saved = w.save()
        for _ in range(3):
            w.tick()
        assert (w.job.state, w.outcome.error) == ("stopped", "SIGINT")
        assert w.job.done() == (12, saved.manifest.steps) == (12, 6)
        assert (w.actions, w.texts("warning")) == ([], ["stopping: SIGINT"])

    @pytest.mark.parametrize("strategy", ["local", "allreduce"])
    def test_a_worker_that_leaves_writes_the_model_that_only_it_has(self, strategy):
        w = running(strategy=strategy, dir="/ck")
        if strategy == "local":
            w.work(tasks=2)
        else:
            w.meet()
            w.at(8)
        w.job.stop("SIGINT", w.now)
        w.tick()
        assert w.lease(0).next == DRAIN, "it does not train on"
        lease = w.call(worker_calls.lease_snapshot, pb.LeaseSnapshotRequest(worker_id=0)).lease
        assert w.complete(0, lease, result=SNAPSHOT)
        w.exit("worker", 0, code=0)
        w.tick()
        commit = w.effect(CommitLocal)
        if strategy == "local":
            assert commit.manifest.watermarks.retired_before == 2
        w.saved(commit.manifest.watermarks, commit.incarnation)
        for _ in range(3):
            w.tick()
        assert w.job.state == "stopped"
        assert w.texts("warning") == ["stopping: SIGINT"]

    @pytest.mark.parametrize(
        ("how", "last"),
        [
            ("hangs", "no last checkpoint: no worker came to the end of its step"),
            ("dies", "no last checkpoint: no worker is left"),
            ("again", "stopping: SIGINT"),
        ],
    )
    def test_it_does_not_wait_for_ever(self, how, last):
        w = running(strategy="local", dir="/ck")
        w.work(tasks=2)
        w.job.stop("SIGINT", w.now)
        w.tick()
        if how == "dies":
            w.kill(0)
        elif how == "again":
            w.job.stop("SIGINT", w.now, at_once=True)
            assert [a.grace_s for a in w.tick()] == [0.0]
        else:
            w.pass_time(19.5)
            assert w.outcome is None
            w.pass_time(1)
        for _ in range(3):
            w.tick()
        assert (w.job.state, w.fleet.alive()) == ("stopped", [])
        assert w.texts("warning")[-1].startswith(last)

    def test_a_server_that_ends_with_the_job_was_not_replaced(self):
        w = running()
        server, other = w.fleet.alive("ps")
        w.job.stop("enough", w.now, at_once=True)
        w.tick()
        assert server.state != RUNNING
        assert w.server_beat(server).known
        newer = pb.ServerHeartbeatRequest(shard=other.shard, incarnation=other.incarnation + 5)
        assert not w.call(server_calls.heartbeat, newer).known


def test_the_first_cause_counts():
    w = running()
    w.job.lifecycle.fail("first", w.now)
    w.job.lifecycle.fail("second", w.now)
    w.job.stop("later", w.now)
    assert w.outcome.error == "first"
