"""Spares, in simulated time: they come late, take places at once, and count as no workers."""

from __future__ import annotations

import json

import pytest

from master.state.actions import Become, NotStarted, Start, Started
from master.state.calls.spare_calls import SpareCalls
from master.state.job.restart import to_state
from master.state.workforce.processes import Process
from tests.unit.master.model_file_world import World, every_record
from torch_edl.wire import master_pb2 as pb


class SparesWorld(World):
    """Plays the spares, too."""

    def __init__(self, *, spares: int = 1, **job) -> None:
        super().__init__(spares=spares, **{"workers": 2, **job})
        self.spare_calls = SpareCalls(self.job)

    def ask(self, id: int, *, warm: bool = True, **fields) -> pb.AwaitPlaceResponse | None:
        request = pb.AwaitPlaceRequest(worker_id=id, warm=warm, **fields)
        return self.spare_calls.await_place(request, self.now)

    def spares(self) -> list[Process]:
        return self.job.fleet.alive("spare")

    def states(self) -> list[str]:
        return sorted(f"{p.name} {p.state}" for p in self.job.fleet.alive())

    def train(self) -> None:
        """Every worker finishes a task, and some time passes."""
        for id in sorted(self.alive):
            self.do(id, self.lease(id).leases[0])
        self.tick()
        self.pass_time(3.0)

    def pass_time(self, seconds: float) -> None:
        """Seconds in which everything that lives is heard."""
        for _ in range(round(seconds / 0.5)):
            for id in self.alive:
                self.calls.heartbeat(pb.HeartbeatRequest(worker_id=id), self.now)
            for process in self.spares():
                if process.state == "running":
                    self.ask(process.id)
            self.tick(0.5)

    def warm(self) -> int:
        """The spare that was started last has imported everything."""
        id = self.spares()[-1].id
        assert self.ask(id, warm=False).config_json == self.job.config.to_json()
        assert self.ask(id) is None
        return id

    def with_a_warm_spare(self) -> int:
        self.all_up()
        self.train()
        return self.warm()


def ready(**job) -> tuple[SparesWorld, int]:
    w = SparesWorld(**job)
    return w, w.with_a_warm_spare()


def starts(actions) -> list[Start]:
    return [action for action in actions if isinstance(action, Start)]


class TestStart:
    def test_not_before_every_worker_has_taken_a_step_and_a_while_has_passed(self):
        w = SparesWorld()
        w.all_up()
        w.pass_time(20.0)
        assert w.spares() == []
        w.do(0, w.lease(0).leases[0])
        w.pass_time(5.0)
        assert w.spares() == []
        w.do(1, w.lease(1).leases[0])
        w.pass_time(3.0)
        assert w.spares() == []
        (start,) = starts(w.tick(0.5))
        assert list(start.spec.args) == ["--job", "j", "--id", "2", "--spare"]
        assert (start.spec.role, start.spec.module) == ("worker", "torch_edl.training.worker")
        w.pass_time(5.0)
        assert [p.id for p in w.spares()] == [2]

    def test_none_are_kept_where_none_are_wanted(self):
        w = SparesWorld(spares=0)
        w.all_up()
        w.train()
        assert w.spares() == []

    def test_several(self):
        w = SparesWorld(spares=3)
        w.all_up()
        w.train()
        assert [p.id for p in w.spares()] == [2, 3, 4]

    def test_a_spare_is_no_worker(self):
        w, spare = ready()
        assert spare not in w.job.members
        assert len(w.job.fleet.alive("worker")) == 2
        assert not w.job.fleet.registered(spare)
        assert w.states() == [
            "ps-0 running", "ps-1 running", "spare-2 running",
            "worker-0 running", "worker-1 running",
        ]  # fmt: skip


class TestPlaces:
    def test_a_dead_worker_is_replaced_at_once_and_the_next_spare_follows_its_first_step(self):
        w, spare = ready()
        w.exit("worker", 0, signal=9)
        assert starts(w.tick()) == []
        assert w.ask(spare).place
        assert w.ask(spare).place, "its answer was lost"
        w.calls.register(pb.RegisterRequest(worker_id=spare, pid=1), w.now)
        w.calls.register(pb.RegisterRequest(worker_id=spare, pid=1), w.now)
        w.alive.add(spare)
        assert w.texts("info").count("spare-2 takes the place of a worker") == 1
        w.report_model(spare)
        w.pass_time(5.0)
        assert w.spares() == []
        w.do(spare, w.lease(spare).leases[0])
        (start,) = starts(w.tick(0.1))
        assert start.spec.id == 3

    def test_a_spare_that_imports_takes_none(self):
        w = SparesWorld()
        w.all_up()
        w.train()
        assert w.ask(2, warm=False).config_json
        w.exit("worker", 0, signal=9)
        (start,) = starts(w.tick())
        assert (start.spec.id, list(start.spec.args)) == (3, ["--job", "j", "--id", "3"])
        assert w.ask(2) is None

    def test_a_spare_that_is_paused_takes_none(self):
        w, spare = ready()
        w.tick(5.0)
        w.exit("worker", 0, signal=9)
        assert [s.spec.id for s in starts(w.tick())] == [3]
        assert w.spares()[0].id == spare

    def test_a_spare_that_takes_a_place_and_does_nothing_is_replaced(self):
        w, spare = ready()
        w.exit("worker", 0, signal=9)
        w.tick()
        w.pass_time(9.5)
        assert "worker-2 starting" in w.states()
        w.pass_time(1.0)
        assert "worker-3 starting" in w.states()
        assert w.job.fleet.process("worker", spare).state == "exited"
        assert w.outcome is None

    def test_never_more_workers_than_wanted(self):
        """One that hangs, or was asked to leave, is gone before a spare takes its place."""
        w, spare = ready()
        w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0, leaving=True), w.now)
        w.tick()
        assert w.ask(spare) is None
        w.exit("worker", 0, code=143)
        w.tick()
        assert w.ask(spare).place

    def test_spares_are_the_first_when_workers_are_added(self):
        w, spare = ready()
        w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=4), w.now)
        assert [s.spec.id for s in starts(w.tick())] == [3]
        assert w.ask(spare).place

    def test_spares_stay_when_workers_leave(self):
        w, spare = ready()
        w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=1), w.now)
        w.tick()
        assert w.ask(spare) is None
        assert [p.id for p in w.spares()] == [spare]

    def test_the_records_of_all_count_once(self):
        w = SparesWorld(epochs=3)
        w.with_a_warm_spare()
        w.work(tasks=3)
        w.exit("worker", 0, signal=9)
        w.up()
        assert 2 in w.alive
        w.work()
        assert w.counted == every_record(3)

    @pytest.mark.parametrize("strategy", ["local", "allreduce"])
    def test_every_strategy(self, strategy):
        w = SparesWorld(strategy=strategy, workers=1)
        w.all_up()
        for process in w.job.fleet.alive("worker"):
            w.job.fleet.trained(process.id)
        w.tick()
        w.pass_time(3.5)
        spare = w.warm()
        w.exit("worker", 0, signal=9)
        assert starts(w.tick()) == []
        assert w.ask(spare).place


class TestDeaths:
    def test_a_dead_spare_is_replaced_later_each_time_and_fails_nothing(self):
        w, spare = ready()
        done, gaps = w.job.lifecycle.rollbacks, []
        for _ in range(12):
            spare, died = w.spares()[0].id, w.now
            w.exit("worker", spare, code=1)
            while not w.spares():
                w.pass_time(0.5)
            gaps.append(w.now - died)
        assert gaps[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
        assert gaps[-1] == 60.0
        assert (w.outcome, w.job.lifecycle.rollbacks) == (None, done)
        text = "spare-2 ended with exit code 1; its log is /worker-2.log; no worker is lost"
        assert text in w.texts("info")
        assert len(w.job.fleet.alive("worker")) == 2

    def test_the_death_of_a_spare_is_no_death_of_a_local_model(self):
        w = SparesWorld(strategy="local", workers=1)
        w.all_up()
        w.train()
        w.exit("worker", w.warm(), signal=9)
        assert w.job.lifecycle.rollbacks == 0

    def test_a_spare_that_cannot_be_started(self):
        w = SparesWorld()
        w.all_up()
        w.train()
        (spare,) = w.spares()
        w.job.apply(NotStarted("worker", spare.id, "no memory"), w.now)
        assert w.outcome is None
        w.exit("worker", 0, signal=9)
        assert [s.spec.id for s in starts(w.tick())] == [3], "workers wait for nothing"
        assert "spare-2 cannot be started: no memory; the next attempt follows" in w.texts()

    def test_a_spare_that_is_silent_is_ended(self):
        w, spare = ready()
        w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
        for _ in range(31):
            for id in w.alive:
                w.calls.heartbeat(pb.HeartbeatRequest(worker_id=id), w.now)
            w.tick(1.0)
        assert w.job.fleet.process("worker", spare).state == "exited"
        assert w.outcome is None

    def test_a_model_file_that_cannot_be_loaded_any_more_ends_spares_and_not_the_job(self):
        w = SparesWorld(spares=2)
        w.all_up()
        w.train()
        for id in (2, 3):
            assert w.ask(id, warm=False, error="/m.py: no model", traceback="line 1").leave
            w.exit("worker", id, code=1)
        w.pass_time(100.0)
        assert w.spares() == []
        text = "/m.py: no model; a spare found this, the workers continue without spares"
        assert w.texts("warning").count(text) == 1
        assert w.outcome is None


class TestEnds:
    def test_a_spare_ends_with_the_job(self):
        w, spare = ready()
        w.work()
        assert w.job.state == "finishing"
        assert w.ask(spare).leave
        w.leave()
        assert w.job.fleet.alive() == []
        assert w.outcome.state == "finished"
        assert "spare" not in "".join(w.texts("info")[-2:])

    def test_a_spare_ends_when_the_job_is_stopped(self):
        w, spare = ready()
        w.job.stop("SIGINT", w.now)
        w.tick()
        assert w.job.fleet.process("worker", spare).state == "exited"
        assert not any("spare" in text for text in w.texts())

    def test_the_next_master_adopts_spares(self):
        w, spare = ready()
        left = json.loads(json.dumps(to_state(w.job)))
        w = SparesWorld(left=left, now=w.now)
        assert [p.id for p in w.spares()] == [spare]
        w.exit("worker", 0, signal=9)
        assert starts(w.tick()) == []
        assert w.ask(spare).place

    def test_the_next_master_knows_which_spare_took_a_place(self):
        w, spare = ready()
        w.exit("worker", 0, signal=9)
        w.tick()
        left = json.loads(json.dumps(to_state(w.job)))
        w = SparesWorld(left=left, now=w.now)
        assert w.ask(spare).place
        w.calls.register(pb.RegisterRequest(worker_id=spare, pid=1), w.now)
        assert spare in w.job.members


def test_a_spare_becomes_a_server_before_a_worker_does():
    w, spare = ready(durability={"mode": "journal", "failover": "worker"})
    w.exit("ps", 0, signal=9)
    assert [a for a in w.tick() if isinstance(a, Become)] == [Become(spare, 2)]
    assert "--shard 0" in " ".join(w.ask(spare).server_args)
    assert len(w.job.fleet.alive("worker")) == 2
    assert "worker-2 becomes ps-2; a spare" in w.texts("warning")


def test_the_status_names_spares():
    from master.state.job.status import describe

    w, _ = ready()
    w.job.apply(Started("worker", 2, 77), w.now)
    status = describe(
        w.job,
        events_after=0,
        now=w.now,
        master=pb.ProcessStatus(),
        log_path=lambda role, id: f"{role}-{id}.log",
    )
    (found,) = [p for p in status.processes if p.role == "spare"]
    assert (found.id, found.pid, found.state, found.log) == (2, 77, "running", "worker-2.log")
