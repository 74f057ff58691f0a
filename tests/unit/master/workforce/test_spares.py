"""Spares come late, take worker slots at once, and count as no workers."""

from __future__ import annotations

import pytest

from master.state.actions import Become, Start
from master.state.calls import worker_calls
from tests.unit.master.world import World, running
from torch_edl.processes.launcher import ProcessNotStarted, ProcessRuns
from torch_edl.wire import master_pb2 as pb


def trained(*, workers: int = 2, spares: int = 1, **job) -> World:
    """Return a job whose workers have finished a task each; its spares have started."""
    w = running(spares=spares, workers=workers, **job)
    for worker in sorted(w.alive):
        w.do(worker, w.task(worker))
    w.tick()
    w.pass_time(3.0)
    return w


def warm(w: World) -> int:
    """Let the newest spare have imported everything."""
    spare = spares(w)[-1]
    assert w.poll(spare, warm=False).config_json == w.job.config.to_json()
    assert w.poll(spare) is None
    return spare


def ready(**job) -> tuple[World, int]:
    w = trained(**job)
    return w, warm(w)


def spares(w: World) -> list[int]:
    return [process.id for process in w.fleet.alive("spare")]


def starts(actions) -> list[int]:
    return [action.spec.id for action in actions if isinstance(action, Start)]


class TestStart:
    def test_not_before_every_worker_has_taken_a_step_and_a_while_has_passed(self):
        w = running(workers=2, spares=1)
        w.pass_time(20.0)
        assert spares(w) == []
        w.do(0, w.task(0))
        w.pass_time(5.0)
        assert spares(w) == []
        w.do(1, w.task(1))
        w.pass_time(3.0)
        assert spares(w) == []
        (start,) = w.tick(0.5)
        assert list(start.spec.args) == ["--job", "j", "--id", "2", "--spare"]
        assert (start.spec.role, start.spec.module) == ("worker", "torch_edl.training.worker")
        w.pass_time(5.0)
        assert spares(w) == [2]

    @pytest.mark.parametrize(("wanted", "ids"), [(0, []), (3, [2, 3, 4])])
    def test_as_many_as_are_wanted(self, wanted, ids):
        assert spares(trained(spares=wanted)) == ids

    def test_a_spare_is_no_worker(self):
        w, spare = ready()
        w.apply(ProcessRuns(role="worker", id=2, pid=77))
        assert spare not in w.job.members
        assert len(w.fleet.alive("worker")) == 2
        assert not w.fleet.registered(spare)
        (found,) = [p for p in w.status().processes if p.role == "spare"]
        assert (found.id, found.pid, found.state) == (2, 77, "running")
        assert found.log == "/logs/worker-2.log"


class TestSlots:
    def test_a_dead_worker_is_replaced_at_once_and_the_next_spare_follows_its_first_step(self):
        w, spare = ready()
        w.kill(0)
        assert starts(w.tick()) == []
        assert w.poll(spare).place
        assert w.poll(spare).place, "its answer was lost"
        for _ in range(2):
            w.call(worker_calls.register, pb.RegisterRequest(worker_id=spare, pid=1))
        w.alive.add(spare)
        assert w.said("spare-2 takes the place of a worker", "info") == 1
        w.report_model(spare)
        w.pass_time(5.0)
        assert spares(w) == []
        w.do(spare, w.task(spare))
        assert starts(w.tick(0.1)) == [3]

    def test_a_spare_that_imports_takes_none(self):
        w = trained()
        assert w.poll(2, warm=False).config_json
        w.kill(0)
        assert starts(w.tick()) == [3]
        assert list(w.started[-1].args) == ["--job", "j", "--id", "3"]
        assert w.poll(2) is None

    def test_a_spare_that_is_paused_takes_none(self):
        w, spare = ready()
        w.tick(5.0)
        w.kill(0)
        assert starts(w.tick()) == [3]
        assert spares(w) == [spare]

    def test_a_spare_that_takes_a_slot_and_does_nothing_is_replaced(self):
        w, spare = ready()
        w.kill(0)
        w.tick()
        w.pass_time(9.5)
        assert w.fleet.process("worker", 2).state == "starting"
        w.pass_time(1.0)
        assert w.fleet.process("worker", spare).state == "exited"
        assert w.fleet.process("worker", 3).state == "starting"
        assert w.outcome is None

    def test_never_more_workers_than_wanted(self):
        """One that hangs, or was asked to leave, is gone before a spare takes its slot."""
        w, spare = ready()
        w.beat(0, leaving=True)
        w.tick()
        assert w.poll(spare) is None
        w.exit("worker", 0, code=143)
        w.tick()
        assert w.poll(spare).place

    def test_spares_are_the_first_when_workers_are_added_and_stay_when_they_leave(self):
        w, spare = ready()
        w.scale(1)
        w.tick()
        assert w.poll(spare) is None
        assert spares(w) == [spare]
        w, spare = ready()
        w.scale(4)
        assert starts(w.tick()) == [3]
        assert w.poll(spare).place

    @pytest.mark.parametrize("strategy", ["local", "allreduce"])
    def test_every_strategy(self, strategy):
        w = running(spares=1, strategy=strategy)
        w.fleet.trained(0)
        w.tick()
        w.pass_time(3.5)
        spare = warm(w)
        w.kill(0)
        assert starts(w.tick()) == []
        assert w.poll(spare).place


class TestDeaths:
    def test_a_dead_spare_is_replaced_later_each_time_and_fails_nothing(self):
        w, spare = ready()
        gaps = []
        for _ in range(12):
            (spare,), died = spares(w), w.now
            w.exit("worker", spare, code=1)
            while not spares(w):
                w.pass_time(0.5)
            gaps.append(w.now - died)
        assert gaps[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
        assert gaps[-1] == 60.0
        assert (w.outcome, w.job.lifecycle.rollbacks) == (None, 0)
        assert w.said("spare-2 ended with exit code 1; its log is /worker-2.log", "info")
        assert len(w.fleet.alive("worker")) == 2

    def test_the_death_of_a_spare_is_no_death_of_a_local_model(self):
        w = trained(strategy="local", workers=1)
        w.exit("worker", warm(w), signal=9)
        assert w.job.lifecycle.rollbacks == 0

    def test_a_spare_that_cannot_be_started(self):
        w = trained()
        w.apply(ProcessNotStarted(role="worker", id=spares(w)[0], why="no memory"))
        assert w.outcome is None
        assert w.said("spare-2 cannot be started: no memory")
        w.kill(0)
        assert starts(w.tick()) == [3], "workers wait for nothing"

    def test_a_spare_that_is_silent_is_ended(self):
        w, spare = ready()
        for _ in range(31):
            for worker in w.alive:
                w.beat(worker)
            w.tick(1.0)
        assert w.fleet.process("worker", spare).state == "exited"
        assert w.outcome is None

    def test_a_model_file_that_cannot_be_loaded_any_more_ends_spares_and_not_the_job(self):
        w = trained(spares=2)
        for spare in (2, 3):
            assert w.poll(spare, warm=False, error="/m.py: no model", traceback="line 1").leave
            w.exit("worker", spare, code=1)
        w.pass_time(100.0)
        assert spares(w) == []
        assert w.said("/m.py: no model", "warning") == 1
        assert w.outcome is None


class TestEnds:
    def test_a_spare_ends_with_the_job(self):
        w, spare = ready()
        w.work()
        assert w.job.state == "finishing"
        assert w.poll(spare).leave
        w.leave_all()
        assert w.fleet.alive() == []
        assert w.outcome.state == "finished"
        assert not w.said("spare")

    def test_a_spare_ends_when_the_job_is_stopped(self):
        w, spare = ready()
        w.job.stop("SIGINT", w.now)
        w.tick()
        assert w.fleet.process("worker", spare).state == "exited"
        assert not w.said("spare")

    @pytest.mark.parametrize("before", [True, False])
    def test_the_next_master_adopts_spares_and_knows_which_took_a_slot(self, before):
        w, spare = ready()
        for step in range(2):
            if before == (step == 0):
                w = w.restart()
            else:
                w.kill(0)
                assert starts(w.tick()) == []
        assert w.poll(spare).place
        w.call(worker_calls.register, pb.RegisterRequest(worker_id=spare, pid=1))
        assert spare in w.job.members


def test_a_spare_becomes_a_server_before_a_worker_does():
    w, spare = ready(durability={"mode": "journal", "failover": "worker"})
    w.exit("ps", 0, signal=9)
    assert [a for a in w.tick() if isinstance(a, Become)] == [Become(spare, 2)]
    assert "--shard 0" in " ".join(w.poll(spare).server_args)
    assert len(w.fleet.alive("worker")) == 2
    assert w.said("worker-2 becomes ps-2; a spare", "warning")
