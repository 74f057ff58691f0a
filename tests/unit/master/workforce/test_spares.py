"""Spare pods come late, take the processes of lost pods at once, and count as no workers."""

from __future__ import annotations

import pytest

from master.state.actions import Start
from tests.unit.master.world import World, running
from torch_edl.processes.launcher import ProcessNotStarted, ProcessSpec


def trained(*, workers: int = 2, spares: int = 1, **job) -> World:
    """Return a job whose workers have finished a task each; its spares have started."""
    w = running(spares=spares, workers=workers, cluster=True, **job)
    for worker in sorted(w.alive):
        w.do(worker, w.task(worker))
    w.tick()
    w.pass_time(3.5)
    return w


def ready(**job) -> tuple[World, int]:
    w = trained(**job)
    w.runs("worker", *spares(w), registers=False)
    return w, spares(w)[-1]


def spares(w: World) -> list[int]:
    return [process.id for process in w.fleet.alive("spare")]


def starts(actions) -> list[tuple[int, str]]:
    """Return (number, pod) of each process that starts; of a pod alone, the pod is empty."""
    specs = [action.spec for action in actions if isinstance(action, Start)]
    return [(spec.id, spec.pod if spec.module else "") for spec in specs]


class TestStart:
    def test_not_before_every_worker_has_taken_a_step_and_a_while_has_passed(self):
        w = running(workers=2, spares=1, cluster=True)
        w.pass_time(20.0)
        assert spares(w) == []
        w.do(0, w.task(0))
        w.pass_time(5.0)
        assert spares(w) == []
        w.do(1, w.task(1))
        w.pass_time(3.0)
        assert spares(w) == []
        (start,) = w.tick(0.5)
        expected = ProcessSpec(role="worker", id=2, env=start.spec.env, slot=2, pod="worker-2")
        assert start.spec == expected
        w.pass_time(5.0)
        assert spares(w) == [2]

    @pytest.mark.parametrize(("wanted", "ids"), [(0, []), (3, [2, 3, 4])])
    def test_as_many_as_are_wanted(self, wanted, ids):
        assert spares(trained(spares=wanted)) == ids

    def test_a_spare_is_no_worker(self):
        w, spare = ready()
        assert spare not in w.job.members
        assert len(w.fleet.alive("worker")) == 2
        assert not w.fleet.registered(spare)
        (found,) = [p for p in w.status().processes if p.role == "spare"]
        assert (found.id, found.state) == (2, "running")


class TestSlots:
    def test_a_lost_pod_is_replaced_at_once_and_the_next_spare_follows_its_first_step(self):
        w, spare = ready()
        w.taken("worker", 0)
        assert starts(w.tick()) == [(spare, "worker-2")]
        assert list(w.started[-1].args) == ["--job", "j", "--id", "2"]
        w.all_up()
        w.pass_time(5.0)
        assert spares(w) == []
        w.do(spare, w.task(spare))
        assert starts(w.tick(0.1)) == [(3, "")]

    def test_a_pod_that_does_not_run_takes_none(self):
        w = trained()
        w.taken("worker", 0)
        assert starts(w.tick()) == [(3, "worker-3")]
        assert spares(w) == [2]

    def test_a_process_that_crashes_in_its_pod_is_replaced_there(self):
        w, spare = ready()
        w.exit("worker", 0, code=1, pod_lives=True)
        assert starts(w.tick()) == [(3, "worker-0")]
        assert spares(w) == [spare]

    def test_the_pods_of_the_first_slots_are_those_of_the_job(self):
        """The first slots have the classes of ``--worker-priority``: a spare that takes a process
        does not become one of them, and its successor does."""
        w, _ = ready(workers=4)
        for _ in range(6):
            victim = min(w.fleet.alive("worker"), key=lambda process: process.slot)
            w.taken("worker", victim.id)
            w.tick()
            newest = max(process.id for process in w.fleet.alive("worker"))
            w.all_up()
            w.fleet.trained(newest)
            w.tick(1.0)
            w.runs("worker", *spares(w), registers=False)
            pods = [p for p in w.fleet.alive() if p.role == "worker"]
            assert sorted(process.slot for process in pods) == [0, 1, 2, 3, 4]

    def test_never_more_workers_than_wanted(self):
        """One that was asked to leave is gone before its successor starts."""
        w, spare = ready()
        w.beat(0, leaving=True)
        assert starts(w.tick()) == []
        w.exit("worker", 0, code=143)
        assert starts(w.tick()) == [(spare, "worker-2")]

    def test_spares_are_the_first_when_workers_are_added_and_stay_when_they_leave(self):
        w, spare = ready()
        w.scale(1)
        w.tick()
        assert spares(w) == [spare]
        w, spare = ready()
        w.scale(4)
        assert starts(w.tick()) == [(spare, "worker-2"), (3, "worker-3")]

    @pytest.mark.parametrize("strategy", ["local", "allreduce"])
    def test_every_strategy(self, strategy):
        w = running(spares=1, strategy=strategy, cluster=True)
        w.fleet.trained(0)
        w.tick()
        w.pass_time(3.5)
        [spare] = spares(w)
        w.runs("worker", spare, registers=False)
        w.taken("worker", 0)
        assert starts(w.tick()) == [(spare, f"worker-{spare}")]


class TestDeaths:
    def test_a_lost_spare_is_replaced_later_each_time_and_fails_nothing(self):
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

    def test_the_loss_of_a_spare_is_no_loss_of_a_local_model(self):
        w, spare = ready(strategy="local", workers=1)
        w.taken("worker", spare)
        assert w.job.lifecycle.rollbacks == 0

    def test_a_spare_that_cannot_be_started(self):
        w = trained()
        w.apply(ProcessNotStarted(role="worker", id=spares(w)[0], why="no memory"))
        assert w.outcome is None
        assert w.said("spare-2 cannot be started: no memory")
        w.taken("worker", 0)
        assert starts(w.tick()) == [(3, "worker-3")], "workers wait for nothing"


class TestEnds:
    def test_a_spare_ends_with_the_job(self):
        w, _ = ready()
        w.work()
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
    def test_the_next_master_knows_spares_and_which_took_a_process(self, before):
        w, spare = ready()
        if before:
            w = w.restart()
            assert spares(w) == [spare]
        w.taken("worker", 0)
        assert starts(w.tick()) == [(spare, "worker-2")]
        if not before:
            w = w.restart()
        assert (spares(w), w.fleet.worker(spare).pod) == ([], "worker-2")


def test_a_spare_makes_room_for_a_server_before_a_worker_does():
    w, spare = ready(durability={"mode": "journal", "failover": "worker"})
    w.taken("ps", 0)
    w.tick()
    assert (w.started[-1].name, w.started[-1].pod) == ("ps-2", "worker-2")
    assert [(stop.role, stop.id) for stop in w.stopped] == [("worker", spare)]
    assert len(w.fleet.alive("worker")) == 2
    assert w.said("spare-2 makes room for a server")
