"""Workers and servers of a model file are lost; every record counts once."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from master.state.actions import CheckpointSaved, Saved, SaveServers, WriteOutput
from master.state.calls import worker_calls
from tests.unit.master.said import CHANGED, DRAIN
from tests.unit.master.world import every_record, running
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class TestWorkers:
    def test_a_silent_worker_is_declared_lost_and_replaced(self):
        w = running()
        w.lease(0)
        w.tick(9.9)
        assert 0 in w.alive
        w.tick(0.1)
        assert 0 not in w.alive
        w.all_up()
        assert w.alive == {1}
        answer = w.beat(0)
        assert (answer.known, answer.drain) == (False, True)
        with pytest.raises(UsageError):
            w.call(worker_calls.register, pb.RegisterRequest(worker_id=0))

    def test_a_worker_that_makes_no_step_is_declared_lost_too(self):
        w = running()
        w.lease(0)
        for second in range(1, 90):
            w.tick(1.0)
            asked = w.beat(0, phase="training", steps=int(second >= 30)).stacks_number
            if asked:
                w.beat(0, phase="training", steps=1, stacks="loop.py", stacks_number=asked)
            assert 0 in w.alive
        w.tick(2.0)
        assert 0 not in w.alive
        assert w.said("declared lost: no step for 60 s")
        assert w.said("Its threads:\nloop.py")

    def test_the_status_tells_which_worker_makes_no_step(self):
        w = running(workers=2)
        w.lease(0, want=2)
        for step in range(1, 9):
            w.tick(1.0)
            w.beat(
                0, phase="training", steps=min(3, step), records=min(12, 4 * step),
                seconds={"compute": 0.5 * step},
            )  # fmt: skip
            w.beat(1, phase="waiting")
        shown = [p for p in w.status().processes if p.role == "worker"]
        assert [(p.phase, p.records, p.leases, p.idle_s, p.lease_s) for p in shown] == [
            ("training", 12, 2, 5.0, 8.0),
            ("waiting", 0, 0, 0.0, 0.0),
        ]
        assert [dict(p.seconds) for p in shown] == [{"compute": 4.0}, {}]

    def test_the_status_tells_what_processes_use(self):
        w = running(workers=2)
        w.beat(0, usage=pb.Usage(cpu_s=1.5, machine="a"))
        first = next(iter(w.fleet.servers))
        w.server_beat(first, usage=pb.Usage(memory=7))
        shown = {(p.role, p.id): p for p in w.status().processes if p.role != "master"}
        assert (shown["worker", 0].usage.cpu_s, shown["worker", 0].usage.machine) == (1.5, "a")
        assert shown["ps", first.id].usage.memory == 7
        assert not shown["worker", 1].HasField("usage")
        assert "usage" not in str(w.job.members.get(0).heartbeat), "it is stored each second"
        w.exit("ps", first.id, signal=9)
        ended = [p for p in w.status().processes if (p.role, p.id) == ("ps", first.id)]
        assert not ended[0].HasField("usage")

    def test_the_status_tells_the_load_of_each_server(self):
        w = running(durability={"mode": "journal"})
        first, second = list(w.fleet.servers)
        w.server_beat(first, version=7, rows=10, bytes=640)
        shown = {p.id: p for p in w.status().processes if p.role == "ps"}
        assert (shown[0].updates, shown[0].rows, shown[0].bytes) == (7, 10, 640)
        assert (shown[1].updates, shown[1].rows) == (0, 0)
        w.exit("ps", first.id, signal=9)
        w.tick()
        loads = {p.id: (p.state, p.rows) for p in w.status().processes if p.role == "ps"}
        assert loads[first.id] == ("exited", 10)
        assert loads[second.id + 1] == ("starting", 0)

    @pytest.mark.parametrize(("fatal", "times"), [(False, 3), (True, 1)])
    def test_failures_of_the_users_code_are_limited(self, fatal, times):
        w = running(workers=2)
        for count in range(1, times + 1):
            lease = w.task(count % 2)
            assert lease.task_id == 0
            w.fail(count % 2, lease, "boom", traceback="tb", fatal=fatal)
            assert (w.outcome is None) == (count < times)
        assert w.outcome.error == "boom" + "; the task was tried 3 times" * (not fatal)
        assert (w.outcome.traceback, w.outcome.exit_code) == ("tb", 1)
        w.tick()
        w.tick()
        assert w.job.state == "failed"

    @pytest.mark.parametrize("worked", [False, True])
    def test_an_error_before_the_first_update_of_the_job_is_the_users(self, worked):
        w = running(workers=2)
        if worked:
            w.do(1, w.task(1))
        w.fail(0, w.task(), "boom", untried=True)
        assert (w.outcome is None) == worked
        assert worked or (w.outcome.exit_code, w.outcome.reason) == (2, "boom")

    def test_each_cause_of_failures_is_told_once(self):
        w = running(epochs=9)
        for error in ("boom (records 0 to 3 of a)", "boom (records 4 to 7 of a)", "bang"):
            w.fail(0, w.task(), error)
            w.do(0, w.task())
        assert [w.said(f"worker-0: {error}", "warning") for error in ("boom", "bang")] == [1, 1]

    def test_releases_never_count(self):
        w = running()
        for _ in range(50):
            w.release(0, w.task())
        w.work()
        assert w.outcome.state == "finished"

    def test_scaling_down_drains_and_up_starts(self):
        w = running(workers=2)
        lease = w.task(1)
        w.scale(1)
        w.tick()
        assert w.beat(1).drain
        assert w.lease(1, held=[lease.lease_id]).next == DRAIN
        w.release(1, lease)
        w.exit("worker", 1, code=0)
        again = w.task(0)
        assert (again.task_id, again.retried) == (lease.task_id, True)
        w.scale(3)
        w.all_up()
        assert w.alive == {0, 2, 3}

    def test_leases_ahead_are_called_back_for_an_idle_worker(self):
        w = running(workers=2)
        assert w.job.tasks.main is not None
        ahead = w.lease(0, want=8).leases
        assert len(ahead) == w.job.tasks.main.space.total == 8
        assert not w.beat(0).give_back, "nobody waits"
        assert w.lease(1) is None
        assert w.beat(0).give_back
        assert not w.beat(1).give_back
        w.tick(5)
        assert not w.beat(0).give_back, "the other worker asks no more"
        assert w.lease(1) is None
        for lease in ahead[1:]:
            w.release(0, lease)
        given = w.task(1)
        assert (given.task_id, given.retried) == (ahead[1].task_id, True)
        assert not w.beat(0).give_back, "one lease, which is under way"
        w.complete(0, ahead[0])

    def test_the_death_of_a_worker_that_was_asked_for_its_leases(self):
        w = running(workers=2)
        ahead = w.lease(0, want=8).leases
        assert w.lease(1) is None
        assert w.beat(0).give_back
        w.release(0, ahead[1])
        w.kill(0)
        begun = []  # tasks that the dead worker may have begun are leased alone
        while len(leases := w.lease(1, want=8).leases) == 1:
            begun.append(leases[0])
            w.complete(1, leases[0])
        assert [each.task_id for each in (*begun, *leases)] == [each.task_id for each in ahead]
        suspects = [each.task_id for each in (*begun, *leases) if each.suspect]
        assert suspects == [ahead[n].task_id for n in (0, 2, 3, 4)]
        assert not w.complete(0, ahead[1]), "a late report of the dead one"

    def test_steps_are_never_counted_double(self):
        w = running(workers=2)
        lease = w.task(0)

        def beat(steps: int) -> tuple[int, int]:
            w.beat(0, steps=steps, records=2 * steps)
            return w.job.done()

        assert [beat(1), beat(2)] == [(2, 1), (4, 2)]
        w.complete(0, lease, steps=2)
        assert w.job.done() == (4, 2)
        w.task(0)
        assert w.job.done() == (4, 2)
        assert [beat(2), beat(3), beat(99)] == [(4, 2), (6, 3), (8, 4)]
        w.kill(0)
        assert w.job.done() == (4, 2)


class TestGoingBack:
    def test_a_dead_server_takes_training_back_to_the_checkpoint(self):
        w = running(dir="/ck", every=4)
        w.work(tasks=2)
        w.tick()
        saved = w.save()
        counted = w.counted.copy()
        w.work(tasks=2)
        assert w.job.done() == (16, 8)
        lost = w.task()
        w.actions.clear()
        w.exit("ps", 1, signal=9)
        assert w.job.done() == (8, 4)
        assert w.lease(incarnation=1) is None, "the servers start"
        assert not w.complete(0, lost)
        w.all_up()
        assert [stop.id for stop in w.stopped] == [0], "the other server of that life ends too"
        assert "--restore" in w.started[-1].args
        answer = w.lease(incarnation=1)
        assert (answer.next, answer.cluster.incarnation) == (CHANGED, 2)
        assert answer.cluster.restored_from == str(saved.path)
        w.counted = counted
        w.work()
        assert w.counted == every_record()
        log = w.job.lifecycle
        assert (log.rollbacks, log.records_rolled_back) == (1, 8)

    def test_a_checkpoint_of_servers_that_are_gone_is_none_of_their_successors(self):
        w = running(dir="/ck", every=4)
        w.work(tasks=2)
        w.tick()
        old = w.effect(SaveServers)
        w.exit("ps", 1, signal=9)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        new = w.effect(SaveServers)
        assert (old.incarnation, new.incarnation) == (1, 2)
        w.apply(CheckpointSaved(w.made(old.progress), old.incarnation))
        assert (w.job.checkpoints.newest, w.job.checkpoints.running) == (None, True)
        assert w.saved(new.progress, new.incarnation) == w.job.checkpoints.newest

    @pytest.mark.parametrize("load", ["", "/pretrained"])
    def test_without_a_checkpoint_it_starts_over(self, load):
        w = running(load=load)
        w.work(tasks=3)
        w.exit("ps", 0, signal=9)
        assert w.job.done() == (0, 0)
        w.counted.clear()
        w.all_up()
        assert w.fleet.cluster().restored_from == load
        w.work()
        assert w.counted == every_record()
        assert w.outcome.state == "finished"

    def test_the_death_of_the_local_worker(self):
        w = running(strategy="local", dir="/ck", every=4)
        w.work(tasks=1)
        w.kill(0)
        assert w.said("the worker restarts from the beginning", "error") == 1
        w.all_up()
        w.counted.clear()
        w.work(tasks=2)
        w.tick()
        w.do(1, w.task(1))
        w.tick()
        saved = w.commit()
        w.kill(1)
        w.all_up()
        assert w.start(2).cluster.restored_from == str(saved.path)
        w.actions.clear()
        w.work()
        assert w.counted == every_record()

    def test_a_rollback_of_a_trained_model_trains_again(self):
        w = running(dir="/ck")
        w.work()
        assert w.job.state == "finishing"
        w.exit("ps", 0, signal=9)
        w.all_up()
        assert w.job.state == "running"

    def test_a_prediction_keeps_what_is_done(self):
        w = running(kind="predict", load="/m")
        w.work(tasks=3)
        w.exit("ps", 0, signal=9)
        w.all_up()
        w.work()
        assert w.counted == every_record()


class TestResume:
    def test_it_goes_on_and_refuses_other_data(self):
        w = running(dir="/ck", every=4)
        w.work(tasks=2)
        w.tick()
        saved = w.save()
        rest = running(dir="/ck", resume=True, resumed=saved)
        assert rest.job.done() == (8, 4)
        assert rest.fleet.cluster().restored_from == str(saved.path)
        rest.work()
        assert sum(rest.counted.values()) == 24
        data = {**saved.manifest.data, "batch_size": 7}
        other = Saved(saved.path, dataclasses.replace(saved.manifest, data=data))
        refused = running(dir="/ck", resume=True, resumed=other)
        assert refused.outcome.exit_code == 2
        assert "--batch-size 7" in refused.outcome.error

    def test_a_job_that_was_complete_only_writes(self):
        w = running(dir="/ck")
        w.work()
        saved = w.save()
        again = running(dir="/ck", resume=True, resumed=saved, output="/out")
        assert again.effect(WriteOutput).checkpoint == saved.path
        assert again.actions == []
        (text,) = again.texts("warning")
        assert "--epochs" in text


@pytest.mark.parametrize("seed", range(20))
def test_storm(seed):
    """Workers die, hang, lie low and release; servers die; every record counts once."""
    rng = random.Random(seed)
    w = running(
        workers=3, epochs=2, eval_records=6, eval_every=rng.choice([0, 7]), dir="/ck", every=6
    )
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
            w.beat(id)
        elif taken and action < 0.93:
            id, lease = taken.pop(rng.randrange(len(taken)))
            if id in w.alive:
                (w.do if action < 0.9 else w.release)(id, lease)
        elif w.alive and action < 0.95:
            w.kill(rng.choice(sorted(w.alive)))
        elif action < 0.955:
            servers = [p.id for p in w.fleet.alive("ps") if p.state == "running"]
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
