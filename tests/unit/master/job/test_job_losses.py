"""Workers and servers of a model file are lost; every record counts once."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from master.state.actions import (
    CommitLocal,
    Saved,
    SaveServers,
    WriteOutput,
)
from tests.unit.master.model_file_world import World, every_record
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class TestWorkers:
    def test_a_dead_workers_tasks_go_to_others(self):
        w = World(workers=2)
        w.all_up()
        first = w.lease(0, want=2).leases
        w.exit("worker", 0, signal=9)
        again = w.lease(1, want=2).leases
        assert [x.task_id for x in again] == [x.task_id for x in first]
        assert all(x.retried for x in again)
        assert not w.complete(0, first[0])

    def test_a_silent_worker_is_declared_lost_and_replaced(self):
        w = World()
        w.all_up()
        w.lease(0)
        w.tick(9.9)
        assert 0 in w.alive
        w.tick(0.1)
        assert 0 not in w.alive
        w.all_up()
        assert w.alive == {1}
        answer = w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
        assert (answer.known, answer.drain) == (False, True)
        with pytest.raises(UsageError):
            w.calls.register(pb.RegisterRequest(worker_id=0), w.now)

    def test_a_worker_that_makes_no_step_is_declared_lost_too(self):
        w = World()
        w.all_up()
        w.lease(0)
        for _ in range(59):
            w.tick(1.0)
            w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0, phase="training"), w.now)
            assert 0 in w.alive
        w.tick(2.0)
        assert 0 not in w.alive
        assert any("declared lost: no step for 60 s" in t for t in w.texts())

    def test_failures_of_the_users_code_are_limited(self):
        w = World(workers=2)
        w.all_up()
        for count in (1, 2, 3):
            (lease,) = w.lease(count % 2).leases
            assert lease.task_id == 0
            w.fail(count % 2, lease, "boom", traceback="tb")
            assert (w.outcome is None) == (count < 3)
        assert w.outcome.error == "boom; the task was tried 3 times"
        assert w.outcome.traceback == "tb"
        assert w.outcome.exit_code == 1

    def test_each_cause_of_failures_is_told_once(self):
        w = World(epochs=9)
        w.all_up()
        for error in ("boom (records 0 to 3 of a)", "boom (records 4 to 7 of a)", "bang"):
            w.fail(0, w.lease(0).leases[0], error)
            w.do(0, w.lease(0).leases[0])
        told = [text for text in w.texts("warning") if "tried again" in text]
        assert [text.split(" (")[0].split(";")[0] for text in told] == [
            "worker-0: boom",
            "worker-0: bang",
        ]

    def test_a_fatal_failure_is_not_tried_again(self):
        w = World()
        w.all_up()
        w.fail(0, w.lease(0).leases[0], "NaN", fatal=True)
        assert w.outcome.error == "NaN"
        w.tick()
        w.tick()
        assert w.job.state == "failed"

    def test_releases_never_count(self):
        w = World()
        w.all_up()
        for _ in range(50):
            w.release(0, w.lease(0).leases[0])
        w.work()
        assert w.outcome.state == "finished"

    def test_scaling_down_drains_and_up_starts(self):
        w = World(workers=2)
        w.all_up()
        (lease,) = w.lease(1).leases
        w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=1), w.now)
        w.tick()
        assert w.calls.heartbeat(pb.HeartbeatRequest(worker_id=1), w.now).drain
        assert w.lease(1, held=[lease.lease_id]).next == pb.LeaseResponse.DRAIN
        w.release(1, lease)
        w.exit("worker", 1, code=0)
        again = w.lease(0).leases[0]
        assert (again.task_id, again.retried) == (lease.task_id, True)
        w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=3), w.now)
        w.all_up()
        assert w.alive == {0, 2, 3}

    def test_steps_are_never_counted_double(self):
        w = World(workers=2)
        w.all_up()
        (lease,) = w.lease(0).leases

        def beat(steps: int) -> tuple[int, int]:
            w.calls.heartbeat(
                pb.HeartbeatRequest(worker_id=0, steps=steps, records=2 * steps), w.now
            )
            return w.job.done()

        assert beat(1) == (2, 1)
        assert beat(2) == (4, 2)
        w.complete(0, lease, steps=2)
        assert w.job.done() == (4, 2)
        (lease,) = w.lease(0).leases
        assert w.job.done() == (4, 2)
        assert beat(2) == (4, 2)
        assert beat(3) == (6, 3)
        assert beat(99) == (8, 4)
        w.exit("worker", 0, signal=9)
        assert w.job.done() == (4, 2)

    def test_a_worker_of_old_servers_is_told_of_the_new(self):
        w = World()
        w.all_up()
        answer = w.calls.lease(pb.LeaseRequest(worker_id=0, want=1, incarnation=0), w.now)
        assert answer.next == pb.LeaseResponse.CLUSTER_CHANGED
        assert [s.address for s in answer.cluster.servers] == ["s0", "s1"]


class TestGoingBack:
    def test_a_dead_server_takes_training_back_to_the_checkpoint(self):
        w = World(dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        saved = w.save()
        counted = w.counted.copy()
        w.work(tasks=2)
        assert w.job.done() == (16, 8)
        (lost,) = w.lease(0).leases
        w.actions.clear()
        w.exit("ps", 1, signal=9)
        assert w.job.done() == (8, 4)
        ask = pb.LeaseRequest(worker_id=0, want=1, incarnation=1)
        assert w.calls.lease(ask, w.now) is None
        assert not w.complete(0, lost)
        w.all_up()
        answer = w.calls.lease(ask, w.now)
        assert answer.next == pb.LeaseResponse.CLUSTER_CHANGED
        assert answer.cluster.incarnation == 2
        assert answer.cluster.restored_from == str(saved.path)
        w.counted = counted
        w.work()
        assert w.counted == every_record()
        log = w.job.lifecycle
        assert (log.rollbacks, log.records_rolled_back) == (1, 8)

    def test_a_local_worker_restarts(self):
        w = World(strategy="local", workers=1)
        w.all_up()
        w.work(tasks=1)
        w.exit("worker", 0, signal=9)
        (text,) = [text for text in w.texts("error") if "restart" in text]
        assert "the worker restarts from the beginning" in text
        assert "and trains " in text

    def test_without_a_checkpoint_it_starts_over(self):
        w = World()
        w.all_up()
        w.work(tasks=3)
        w.exit("ps", 0, signal=9)
        assert w.job.done() == (0, 0)
        w.counted.clear()
        w.all_up()
        w.work()
        assert w.counted == every_record()
        assert w.outcome.state == "finished"

    def test_what_was_loaded_is_loaded_again(self):
        w = World(load="/pretrained")
        w.all_up()
        w.exit("ps", 0, signal=9)
        w.all_up()
        assert w.job.fleet.cluster().restored_from == "/pretrained"
        assert w.job.done() == (0, 0)

    def test_a_server_that_dies_in_the_last_evaluation(self):
        w = World(dir="/ck", eval_records=4)
        w.all_up()
        w.work()
        effect = w.settle(SaveServers)
        w.exit("ps", 0, signal=9)
        w.saved(effect.progress, effect.incarnation)  # of servers that are gone
        assert not w.job.checkpoints.complete
        w.all_up()
        w.counted.clear()
        w.work()
        assert w.counted == every_record()
        w.save()
        w.tick()
        assert w.outcome.state == "finished"

    def test_the_death_of_the_local_worker(self):
        w = World(strategy="local", dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        w.do(0, w.lease(0).leases[0])
        w.tick()
        commit = w.settle(CommitLocal)
        saved = w.saved(commit.manifest.watermarks, commit.incarnation)
        counted = w.counted.copy()
        w.work(tasks=3)
        w.exit("worker", 0, signal=9)
        w.counted = counted
        w.all_up()
        assert w.report_model(1).cluster.restored_from == str(saved.path)
        w.actions.clear()
        w.work()
        assert w.counted == every_record()

    def test_a_prediction_keeps_what_is_done(self):
        w = World(kind="predict", load="/m")
        w.all_up()
        w.work(tasks=3)
        w.exit("ps", 0, signal=9)
        w.all_up()
        w.work()
        assert w.counted == every_record()

    def test_resume_goes_on_and_refuses_other_data(self):
        w = World(dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        saved = w.save()
        rest = World(dir="/ck", resume=True, resumed=saved)
        rest.all_up()
        assert rest.job.done() == (8, 4)
        assert rest.job.fleet.cluster().restored_from == str(saved.path)
        rest.work()
        assert sum(rest.counted.values()) == 24
        manifest = dataclasses.replace(
            saved.manifest, data={**saved.manifest.data, "batch_size": 7}
        )
        other = World(dir="/ck", resume=True, resumed=Saved(saved.path, manifest))
        other.all_up()
        assert other.outcome.exit_code == 2
        assert "--batch-size 7, now it is 2" in other.outcome.error

    def test_a_resumed_job_that_was_complete_only_writes(self):
        w = World(dir="/ck")
        w.all_up()
        w.work()
        saved = w.save()
        again = World(dir="/ck", resume=True, resumed=saved, output="/out")
        again.all_up()
        assert again.settle(WriteOutput).checkpoint == saved.path
        assert again.actions == []
        (text,) = again.texts("warning")
        assert text.startswith("nothing is left to train")
        assert "raise --epochs to continue" in text


@pytest.mark.parametrize("seed", range(20))
def test_storm(seed):
    """Workers die, hang, lie low and release; servers die; every record counts once."""
    rng = random.Random(seed)
    w = World(
        workers=3, epochs=2, eval_records=6, eval_every=rng.choice([0, 7]), dir="/ck", every=6
    )
    w.all_up()
    taken: list[tuple[int, pb.LeaseMessage]] = []
    counted = Counter()
    for _ in range(5000):
        if w.outcome is not None:
            break
        action = rng.random()
        if w.alive and action < 0.6:
            id = rng.choice(sorted(w.alive))
            held = [x.lease_id for owner, x in taken if owner == id]
            answer = w.lease(id, want=2, held=held)
            if answer is not None:
                taken += [(id, x) for x in answer.leases]
            w.calls.heartbeat(pb.HeartbeatRequest(worker_id=id), w.now)
        elif taken and action < 0.9:
            id, lease = taken.pop(rng.randrange(len(taken)))
            if id in w.alive:
                w.do(id, lease)
        elif taken and action < 0.93:
            id, lease = taken.pop(rng.randrange(len(taken)))
            if id in w.alive:
                w.release(id, lease)
        elif w.alive and action < 0.95:
            id = rng.choice(sorted(w.alive))
            w.exit("worker", id, signal=9)
        elif action < 0.955:
            servers = [p.id for p in w.job.fleet.alive("ps") if p.state == "running"]
            if servers:
                w.exit("ps", rng.choice(servers), signal=9)
                w.counted = counted.copy()
                w.actions.clear()
        for effect in [a for a in w.actions if isinstance(a, SaveServers)]:
            # The cut of the servers is what is done now.
            w.actions.remove(effect)
            w.saved(w.job.tasks.main.progress(), effect.incarnation)
            counted = w.counted.copy()
        w.tick(rng.random())
        w.all_up()
    assert w.outcome is not None, "it never ended"
    assert w.outcome.state == "finished", w.outcome
    assert w.counted == every_record(2)
    assert w.job.tasks.evaluations.results[-1].metrics == {"loss": 2 / 6}
