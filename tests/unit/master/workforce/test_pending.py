"""Processes that are asked for, and run when a machine has room; workers that share pods."""

from __future__ import annotations

from typing import Any

import pytest

from master.state.actions import Become, Failure, Start, Stop
from master.state.workforce.failover import Failover
from master.state.workforce.starts import Machines
from master.state.workforce.waiting import Census, Waiting
from tests.unit.master.workforce.fleets import NO_ROOM, Processes
from tests.unit.master.world import World
from torch_edl.config import DurabilityConfig, JobConfig
from torch_edl.processes.launcher import ProcessExit, ProcessRefused, ProcessRuns, ProcessWaits


def fleet(workers: int, **options: Any) -> Processes:
    return Processes(workers, is_scheduled=True, name="ab", **options)


def started(workers: int, **options: Any) -> Processes:
    f = fleet(workers, **options)
    f.plan(0.0)
    return f


def test_all_workers_are_asked_for_at_once_and_pending_ones_join_later() -> None:
    f = fleet(16)
    assert len(f.did(0.0)) == 16
    f.runs("worker", 0, 1.0)
    # Hours later: nothing else is asked for, and nobody is overdue.
    for id in range(1, 16):
        f.waits("worker", id, 2.0)
    assert f.plan(36_000.0) == []
    f.runs("worker", 7, 36_001.0)
    assert f.plan(36_002.0) == []


def test_the_time_to_register_begins_when_the_process_runs() -> None:
    f = started(1)
    f.runs("worker", 0, 1000.0, registers=False)
    assert f.plan(1179.0) == []
    assert f.plan(1180.0) == [Stop("worker", 0, 0.0)]


def test_a_worker_may_register_before_anybody_says_that_it_runs() -> None:
    f = started(1)
    assert f.registered(0)
    f.runs("worker", 0, 1.0)
    f.waits("worker", 0, 2.0)  # a late message of before
    assert [p.state for p in f] == ["running"]


def test_fewer_workers_wanted_ends_those_first_that_do_not_run() -> None:
    f = started(4)
    for id in (0, 2, 3):
        f.runs("worker", id, 1.0)
    f.workers_wanted = 3
    assert f.plan(2.0) == []  # it is told first, and stopped with the next tick
    assert f.plan(2.0) == [Stop("worker", 1, 2.0)]
    assert [p.id for p in f.alive("worker") if p.state == "running"] == [0, 2, 3]


def test_pods_that_machines_refuse_at_once_are_asked_for_ever_more_slowly() -> None:
    f = started(1)
    now, times = 0.0, []
    for id in range(9):
        f.taken("worker", id, now, "its node had no room left")
        before = now
        while not f.plan(now):
            now += 0.5
        times.append(now - before)
    assert times == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(("code", "why"), [(1, "oh no"), (137, "out of memory")])
def test_crashes_of_user_code_and_of_memory_stay_bounded(code: int, why: str) -> None:
    f = fleet(1)
    found: Any = None
    for id in range(5):
        assert not isinstance(found, Failure)
        assert f.did(100.0 * id) == [f"start worker-{id}"]
        f.runs("worker", id, 100.0 * id)
        found = f.ends("worker", id, 100.0 * id, code=code, why=why, own_fault=True)
    assert isinstance(found, Failure)
    assert why in found.error


# ---- servers ----


def waiting_for_server(mode: str) -> tuple[Processes, Failover]:
    """Return a fleet whose two workers wait for a server that no machine has room for."""
    f = started(3, servers=1, strategy="ps")
    for id in range(2):
        f.runs("worker", id, 1.0)
    f.waits("worker", 2, 1.0)
    f.waits("ps", 0, 1.0)
    config = JobConfig(name="j", model_file="/m.py", durability=DurabilityConfig(mode=mode))
    return f, Failover(config, f)


@pytest.mark.parametrize("mode", ["checkpoint", "journal"])
def test_a_worker_takes_the_role_of_a_server_for_which_there_is_no_room(mode: str) -> None:
    f, failover = waiting_for_server(mode)
    assert list(failover.tick(14.0, counts_silence=True)) == []
    [note] = failover.tick(16.0, counts_silence=True)
    assert "ps-0 does not run" in note.text
    actions = f.plan(16.0)
    assert Become(worker=1, server=1) in actions
    server, worker = f.process("ps", 1), f.process("worker", 1)
    assert (server.state, server.started_as, server.node) == ("starting", "worker-1", "n1")
    assert worker.exit == "became ps-1"
    assert Stop("ps", 0, 0.0) in [*actions, *f.plan(17.0)], "the pod that waits"


@pytest.mark.parametrize("mode", ["checkpoint", "journal"])
def test_a_server_whose_image_is_being_pulled_is_waited_for(mode: str) -> None:
    f, failover = waiting_for_server(mode)
    f.waits("ps", 0, 2.0, why="", placed=True)
    assert list(failover.tick(3600.0, counts_silence=True)) == []


def test_the_last_worker_stays_one() -> None:
    f, failover = waiting_for_server("checkpoint")
    f.taken("worker", 1, 2.0)
    assert list(failover.tick(60.0, counts_silence=True)) == []


# ---- machines ----


def test_a_machine_that_loses_processes_is_avoided_for_a_while() -> None:
    machines = Machines()
    for now, avoided in ((0.0, False), (100.0, False), (200.0, True), (300.0, True)):
        notes = machines.lost("n1", "exit code 1", now)
        assert ["n1" in note.text for note in notes] == [True] * (now == 200.0), "said once"
        assert machines.avoided(now) == ("n1",) * avoided
    assert machines.avoided(699.0) == ("n1",)
    assert machines.avoided(701.0) == ()


def test_losses_that_are_far_apart_or_of_unknown_machines_do_not_count() -> None:
    machines = Machines()
    for i in range(10_000):
        assert machines.lost("n1", "x", 301.0 * i) == []
        assert machines.lost("", "x", 0.0) == []
        machines.lost(f"m{i}", "x", 0.0)
        assert machines.avoided(301.0 * i) == ()
    assert len(machines._losses) == 1000, "their number is bounded"


def world() -> World:
    return World(workers=2, servers=1, cluster=True)


def test_a_machine_that_eats_processes_is_named_and_avoided_in_what_starts_next() -> None:
    w = world()
    for id in range(3):
        w.tick()
        w.apply(ProcessRuns(role="worker", id=id, node="n7"))
        w.exit("worker", id, code=137, node="n7", blames_node=True)
    assert w.said("n7 lost 3 processes")
    specs = [a.spec for a in w.tick(60.0) if isinstance(a, Start)]
    assert specs
    assert all(spec.avoid == ("n7",) for spec in specs)


def test_a_worker_that_was_asked_to_leave_does_not_speak_against_its_machine() -> None:
    w = world()
    for id in [0, 1] * 3:
        w.fleet.process("worker", id).enter("draining")
        exit = ProcessExit(role="worker", id=id, code=1, node="n7", blames_node=True)
        w.job.apply_all(w.job.workforce.ended(exit, w.now), w.now)
    assert w.fleet.starts.machines.avoided(w.now) == ()


# ---- what the user hears ----


def heard(f: Processes, waiting: Waiting, now: float) -> list[str]:
    return [note.text for note in waiting.tick(Census.of(f.alive()), now)]


def test_why_processes_wait_is_said_once_for_each_cause() -> None:
    f, waiting = started(16), Waiting(min_workers=1)
    f.runs("worker", 0, 0.0)
    for id in range(1, 16):
        f.waits("worker", id, 1.0)
    assert heard(f, waiting, 2.0) == []  # most are placed within seconds
    assert heard(f, waiting, 3.0) == [f"15 workers wait: {NO_ROOM}; ask for less"]
    for id in range(1, 16):
        f.waits("worker", id, 4.0, why=NO_ROOM.replace("3 nodes", "4 nodes"))
    assert heard(f, waiting, 100.0) == []
    for id in range(1, 15):
        f.runs("worker", id, 101.0)
    f.waits("worker", 15, 101.0, why="the image x cannot be pulled: not found")
    (text,) = heard(f, waiting, 101.0)
    assert text.startswith("worker-15 waits: the image x cannot be pulled")
    f.waits("worker", 15, 102.0)
    assert heard(f, waiting, 130.0) == [], "not each second"
    assert len(heard(f, waiting, 131.0)) == 1
    f.runs("worker", 15, 132.0)
    assert [len(heard(f, waiting, now)) for now in (132.0, 133.0)] == [1, 0]


def test_fewer_workers_than_the_minimum_is_said() -> None:
    f, waiting = started(4), Waiting(min_workers=3)
    f.runs("worker", 0, 0.0)
    assert [len(heard(f, waiting, now)) for now in (0.0, 9.0, 10.0, 60.0)] == [0, 0, 1, 0]
    for id in (1, 2):
        f.runs("worker", id, 61.0)
    assert [len(heard(f, waiting, now)) for now in (61.0, 90.0)] == [1, 0]


@pytest.mark.parametrize("wanted", [2, 0])
def test_a_loss_below_the_minimum_is_said_unless_the_user_wants_that(wanted: int) -> None:
    w = world()
    for id in range(2):
        w.apply(ProcessRuns(role="worker", id=id, node="n1"))
    w.fleet.workers_wanted = wanted
    for id in range(2):
        w.exit("worker", id, code=143, why="preempted", own_fault=False, node="n1")
    assert w.said("workers left: 0, minimum: 1") == (wanted > 0)


def test_what_a_process_waits_for_is_in_the_status() -> None:
    w = world()
    w.apply(ProcessWaits(role="worker", id=1, why=NO_ROOM, fix="ask for less", placed=False))
    [found] = [p for p in w.status().processes if p.role == "worker" and p.id == 1]
    assert (found.state, found.problem) == ("pending", NO_ROOM)


def test_a_pod_that_can_never_run_fails_the_job_as_the_users_matter() -> None:
    w = world()
    w.apply(ProcessRefused(role="worker", id=0, why="no such image; name another"))
    assert (w.outcome.state, w.outcome.usage_error) == ("failed", True)
    assert "worker-0" in w.outcome.error
    assert "no such image; name another" in w.outcome.error


def test_words_about_a_process_that_has_ended_change_nothing() -> None:
    w = world()
    w.exit("worker", 0, code=143, why="preempted", own_fault=False)
    w.apply(ProcessWaits(role="worker", id=0, why=NO_ROOM, fix="", placed=False))
    for id in (0, 99):
        w.apply(ProcessRuns(role="worker", id=id))
    assert w.fleet.process("worker", 0).state == "exited"


# ---- shared pods ----


def shared(workers: int) -> Processes:
    """Return a fleet with two workers in each pod, all of them running."""
    f = started(workers, servers=1, workers_per_pod=2)
    everybody_runs(f, 1.0)
    return f


def everybody_runs(f: Processes, now: float) -> None:
    for process in f.alive("worker"):
        f.runs("worker", process.id, now)


def test_the_last_pod_has_what_is_left() -> None:
    f = fleet(5, workers_per_pod=2)
    assert f.pods(0.0) == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)]
    assert fleet(3).pods(0.0) == [(0, -1), (1, -1), (2, -1)]


def test_a_worker_that_is_lost_is_replaced_in_its_pod_also_by_the_next_master() -> None:
    f = shared(4)
    f.ends("worker", 1, 2.0, signal=9)
    assert f.pods(2.0) == [(4, 0)]
    f.ends("worker", 0, 3.0, code=143)
    assert f.pods(3.0) == [(5, 0)], "the pod has the number of a worker that is gone"
    after = fleet(4, servers=1, workers_per_pod=2)
    after.from_state(f.to_state(), 0.0)
    after.ends("worker", 3, signal=9)
    assert after.pods(2.0) == [(6, 2)]


def test_a_pod_that_is_lost_is_replaced_by_another_one() -> None:
    f = shared(4)
    for id in (2, 3):
        f.taken("worker", id, 2.0)
    assert f.pods(2.0) == [(4, 4), (5, 4)]


def test_a_pod_that_crashes_is_one_crash_and_the_last_one_fails_the_job() -> None:
    f = fleet(2, workers_per_pod=2)
    found: Any = None
    for round in range(5):
        now, first = 100.0 * round, 2 * round
        assert f.pods(now) == [(first, first), (first + 1, first)]
        everybody_runs(f, now)
        assert not isinstance(found, Failure)
        # As the launcher tells it: the first one has the cause.
        found = f.ends("worker", first, now, code=1, why="oh no")
        f.ends("worker", first + 1, now, why="its pod ended", own_fault=False)
    assert isinstance(found, Failure)


def test_fewer_workers_leave_in_whole_pods_and_come_back() -> None:
    f = shared(6)
    f.ends("worker", 0, 2.0, signal=9)
    assert f.pods(2.0) == [(6, 0)]
    everybody_runs(f, 3.0)
    f.workers_wanted = 3
    f.plan(4.0)
    assert f.draining() == [3, 4, 5]
    for id in (3, 4, 5):
        f.ends("worker", id, 5.0, code=0)
    f.workers_wanted = 5
    assert f.pods(6.0) == [(7, 2), (8, 8)]


def test_a_pod_that_leaves_takes_nobody_in() -> None:
    f = shared(2)
    f.workers_wanted = 0
    f.plan(2.0)
    f.ends("worker", 1, 3.0, code=0)
    f.workers_wanted = 2
    assert f.pods(4.0) == [(2, 2)]
