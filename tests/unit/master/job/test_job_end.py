"""How the job of a model file ends."""

from __future__ import annotations

import pytest

from master.state.actions import (
    CheckpointFailed,
    CommitLocal,
    Flush,
    Flushed,
    OutputWritten,
    SaveServers,
    WriteOutput,
)
from master.state.workforce.processes import RUNNING
from tests.unit.master.model_file_world import SNAPSHOT, World
from torch_edl.wire import master_pb2 as pb


class TestLeftOut:
    """Minibatches that ``--on-nan skip`` left out."""

    def trained(self, nan: int) -> World:
        """16 minibatches, of which so many had no finite loss."""
        w = World()
        w.all_up()
        while (answer := w.lease()) is not None and answer.leases:
            for lease in answer.leases:
                steps = -(-(lease.end - lease.start) // 2)
                w.complete(0, lease, steps=steps, nan_steps=min(nan, steps))
                nan -= min(nan, steps)
        w.tick()
        return w

    def test_a_job_that_trained_on_nothing_has_failed(self):
        w = self.trained(nan=100)
        assert (w.outcome.state, w.outcome.exit_code) == ("failed", 1)
        assert "nothing was trained: none of the 16 minibatches" in w.outcome.error

    @pytest.mark.parametrize(("nan", "said"), [(1, 0), (2, 1), (11, 1)])
    def test_many_are_worth_a_word_at_the_end(self, nan, said):
        w = self.trained(nan)
        assert w.outcome.state == "finished"
        texts = [text for text in w.texts("warning") if "on-nan" in text]
        assert (
            texts
            == [f"--on-nan skip left {nan} of 16 minibatches out: their loss was not finite"] * said
        )

    def test_what_a_lost_worker_did_may_have_been_trained(self):
        w = World()
        w.all_up()
        lease = w.lease(0).leases[0]
        w.exit("worker", 0, signal=9)
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


class TestTheEnd:
    @pytest.mark.parametrize("over", [False, True])
    def test_only_who_is_asked_by_others_is_told_of(self, over):
        w = World()
        w.all_up()
        if over:
            w.job.lifecycle.fail("no good", w.now)
        w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0, leaving=True), w.now)
        assert ("worker-0 was asked to leave (SIGTERM)" in w.texts()) != over
        assert over == (w.texts()[-1] == "no good")

    def test_a_last_checkpoint_that_fails_three_times_fails_the_job(self):
        w = World(dir="/ck")
        w.all_up()
        w.work()
        for count in (1, 2, 3):
            assert w.outcome is None
            effect = w.settle(SaveServers)
            w.job.apply(CheckpointFailed("No space left on device", effect.incarnation), w.now)
            if count < 3:
                w.tick()
                assert w.actions == []
                w.tick(5.0)
                w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
        assert "No space left" in w.outcome.error

    def test_a_periodic_one_that_fails_is_tried_again_soon(self):
        w = World(dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        w.job.apply(CheckpointFailed("disk", w.settle(SaveServers).incarnation), w.now)
        w.tick(5.0)
        w.settle(SaveServers)
        assert w.outcome is None

    def test_output_that_cannot_be_written_fails_the_job(self):
        w = World(output="/out")
        w.all_up()
        w.work()
        w.save()
        w.tick()
        w.settle(WriteOutput)
        w.job.apply(OutputWritten("read-only"), w.now)
        assert "--output /out" in w.outcome.error

    def test_stop_ends_everything_at_once(self):
        w = World(workers=2, dir="/ck")
        w.all_up()
        w.job.stop("SIGTERM", w.now)
        w.tick()
        w.tick()
        assert w.job.state == "stopped"
        assert w.job.fleet.alive() == []
        assert w.actions == []

    def test_a_stop_keeps_what_servers_hold(self):
        w = World(workers=2, mode="sync", eval_records=4, dir="/ck", output="/out")
        w.all_up()
        w.work(tasks=3)
        w.job.stop("SIGINT", w.now)
        w.tick()
        assert w.job.state == "stopping"
        assert w.lease(0).next == pb.LeaseResponse.DRAIN
        assert (w.actions, w.job.fleet.workers_wanted) == ([], 2)
        for worker in (0, 1):
            w.exit("worker", worker, code=0)
        w.tick()
        w.settle(Flush)
        w.job.apply(Flushed(1, success=True), w.now)
        w.tick()
        saved = w.save()
        for _ in range(3):
            w.tick()
        assert (w.job.state, w.outcome.error) == ("stopped", "SIGINT")
        assert w.job.done() == (12, saved.manifest.steps) == (12, 6)
        assert (w.actions, w.texts("warning")) == ([], ["stopping: SIGINT"])

    @pytest.mark.parametrize("strategy", ["local", "allreduce"])
    def test_a_worker_that_leaves_writes_the_model_that_only_it_has(self, strategy):
        w = World(strategy=strategy, dir="/ck")
        w.all_up()
        if strategy == "local":
            w.work(tasks=2)
        else:
            join = pb.JoinRingRequest(worker_id=0, store="s", step=-1)
            w.calls.join_ring(join, w.now)
            w.tick(1)
            beat = pb.HeartbeatRequest(worker_id=0, ring=1, position=8, steps=4)
            w.calls.heartbeat(beat, w.now)
        w.job.stop("SIGINT", w.now)
        w.tick()
        ask = pb.LeaseSnapshotRequest(worker_id=0)
        assert w.lease(0).next == pb.LeaseResponse.DRAIN, "it does not train on"
        lease = w.calls.lease_snapshot(ask, w.now).lease
        assert w.complete(0, lease, result=SNAPSHOT)
        w.exit("worker", 0, code=0)
        w.tick()
        commit = w.settle(CommitLocal)
        if strategy == "local":
            assert commit.manifest.watermarks.retired_before == 2
        w.saved(commit.manifest.watermarks, commit.incarnation)
        for _ in range(3):
            w.tick()
        assert w.job.state == "stopped"
        assert w.texts("warning") == ["stopping: SIGINT"]

    @pytest.mark.parametrize("how", ["hangs", "dies", "again"])
    def test_a_stop_does_not_wait_for_ever(self, how):
        w = World(strategy="local", dir="/ck")
        w.all_up()
        w.work(tasks=2)
        w.job.stop("SIGINT", w.now)
        w.tick()
        if how == "dies":
            w.exit("worker", 0, signal=9)
        elif how == "again":
            w.job.stop("SIGINT", w.now, at_once=True)
            assert [a.grace_s for a in w.tick()] == [0.0]
        else:
            for _ in range(20):
                w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
                w.tick(1)
        for _ in range(3):
            w.tick()
        assert (w.job.state, w.job.fleet.alive()) == ("stopped", [])
        last = {
            "hangs": "no last checkpoint: no worker came to the end of its step within 20 s",
            "dies": "no last checkpoint: no worker is left that has the model",
            "again": "stopping: SIGINT",
        }
        assert w.texts("warning")[-1] == last[how]

    def test_the_first_cause_counts(self):
        w = World()
        w.all_up()
        w.job.lifecycle.fail("first", w.now)
        w.job.lifecycle.fail("second", w.now)
        w.job.stop("later", w.now)
        assert w.outcome.error == "first"

    def test_a_crash_loop_fails_the_job(self):
        w = World()
        for _ in range(5):
            w.tick(60.0)
            process = w.job.fleet.alive("worker")[0]
            w.exit("worker", process.id, code=1)
        assert "exit code 1" in w.outcome.error
        assert f"/worker-{process.id}.log" in w.outcome.error


def test_a_server_that_ends_with_the_job_was_not_replaced():
    w = World()
    w.all_up()
    [server, other] = w.job.fleet.alive("ps")
    w.job.stop("enough", w.now, at_once=True)
    w.tick()
    assert server.state != RUNNING
    assert w.beat(server).known
    before = pb.ServerHeartbeatRequest(shard=other.shard, incarnation=other.incarnation + 5)
    assert not w.servers.heartbeat(before, w.now).known
