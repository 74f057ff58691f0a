"""Processes that are asked for, and run when a machine has room; pods and their processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from master.state.actions import Start
from master.state.workforce.starts import Machines
from tests.unit.master.world import NO_ROOM, World
from torch_edl.processes.launcher import ProcessExit, ProcessRefused, ProcessSpec


def world(workers: int = 2, **options: Any) -> World:
    """Return a job of which the cluster has heard."""
    return World(
        **{"workers": workers, "servers": 1, "cluster": True, "strategy": "auto"} | options
    )


def test_all_workers_are_asked_for_at_once_and_pending_ones_join_later() -> None:
    w = world(16)
    assert len(w.started) == 16
    w.runs("worker", 0)
    # Hours later: nothing else is asked for, and nobody is overdue.
    w.waits("worker", *range(1, 16))
    assert w.tick(36_000) == []
    w.runs("worker", 7)
    assert w.tick(1) == []


def test_the_time_to_register_begins_when_the_process_runs() -> None:
    w = world(1)
    w.tick(1000)
    w.runs("worker", 0, registers=False)
    w.tick(179)
    assert w.stopped == []
    w.tick(1)
    assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(0, 0.0)]


def test_a_worker_may_register_before_anybody_says_that_it_runs() -> None:
    w = world(1)
    assert w.fleet.registered(0)
    w.runs("worker", 0)
    w.waits("worker", 0)  # a late message of before
    assert [p.state for p in w.fleet] == ["running"]


def test_fewer_workers_wanted_ends_those_first_that_do_not_run() -> None:
    w = world(4)
    w.runs("worker", 0, 2, 3)
    w.scale(3)
    for _ in range(2):  # it is told first
        w.tick()
    assert [stop.id for stop in w.stopped] == [1]
    assert [p.id for p in w.fleet.alive("worker") if p.state == "running"] == [0, 2, 3]


def test_pods_that_machines_refuse_at_once_are_asked_for_ever_more_slowly() -> None:
    w, pauses = world(1), []
    for id in range(9):
        w.taken("worker", id, "its node had no room left")
        before = w.now
        while not w.begun():
            w.now += 0.5
        pauses.append(w.now - before)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(("code", "why"), [(1, "oh no"), (137, "out of memory")])
def test_crashes_of_user_code_and_of_memory_stay_bounded(code: int, why: str) -> None:
    w = world(1)
    for id in range(5):
        assert w.outcome is None
        w.tick(100)
        w.runs("worker", id)
        w.exit("worker", id, code=code, why=why, own_fault=True)
    assert why in w.outcome.error


# ---- servers ----


def waiting_for_server(mode: str) -> World:
    """Return a job whose two workers wait for a server that no machine has room for."""
    w = World(workers=3, servers=1, durability={"mode": mode}, cluster=True)
    w.runs("worker", 0, 1)
    w.waits("worker", 2)
    w.waits("ps", 0)
    w.silent.add(0)
    return w


@pytest.mark.parametrize("mode", ["checkpoint", "journal"])
def test_a_worker_makes_room_for_a_server_that_fits_nowhere(mode: str) -> None:
    w = waiting_for_server(mode)
    w.tick(14)
    assert not w.said("ps-0 does not run")
    w.tick(2)
    assert w.said("ps-0 does not run")
    assert (w.started[-1].name, w.started[-1].pod) == ("ps-1", "worker-1")
    stops = [(stop.role, stop.id) for stop in w.stopped]
    assert sorted(stops) == [("ps", 0), ("worker", 1)], "the pod that waits, and the worker"
    assert w.said("worker-1 makes room for a server")


@pytest.mark.parametrize("mode", ["checkpoint", "journal"])
def test_a_server_whose_image_is_being_pulled_is_waited_for(mode: str) -> None:
    w = waiting_for_server(mode)
    w.waits("ps", 0, why="", placed=True)
    w.tick(3600)
    assert not w.said("ps-0 does not run")


def test_the_first_server_of_a_shard_may_start_slowly() -> None:
    """On a cold, busy machine. No worker is taken for the shard, which has no data yet."""
    w = World(workers=3, servers=1, durability={"mode": "journal"})
    w.runs("worker", 0, 1, 2)
    w.silent.add(0)
    w.runs("ps", 0)
    w.tick(179)
    assert not w.said("ps-0")
    w.tick(2)
    assert w.said("ps-0 declared lost: no heartbeat for 180 s")


def test_the_last_worker_stays_one() -> None:
    w = waiting_for_server("checkpoint")
    w.taken("worker", 1)
    w.tick(60)
    assert not w.said("ps-0 does not run")


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


def test_a_machine_that_eats_processes_is_named_and_avoided_in_what_starts_next() -> None:
    w = world()
    for id in range(3):
        w.tick()
        w.runs("worker", id)
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


def heard(w: World, seconds: float) -> list[str]:
    """Let time pass. Returns what is said meanwhile."""
    before = len(w.texts())
    w.tick(seconds)
    return w.texts()[before:]


def test_why_processes_wait_is_said_once_for_each_cause() -> None:
    w = world(16)
    w.runs("worker", 0)
    w.waits("worker", *range(1, 16))
    assert heard(w, 1) == []  # most are placed within seconds
    assert heard(w, 1) == [f"15 workers wait: {NO_ROOM}; ask for less"]
    w.waits("worker", *range(1, 16), why=NO_ROOM.replace("3 nodes", "4 nodes"))
    assert heard(w, 97) == []
    w.runs("worker", *range(1, 15))
    w.waits("worker", 15, why="the image x cannot be pulled: not found")
    (text,) = heard(w, 2)
    assert text.startswith("worker-15 waits: the image x cannot be pulled")
    w.waits("worker", 15)
    assert [len(heard(w, seconds)) for seconds in (29, 1)] == [0, 1], "not each second"
    w.runs("worker", 15)
    assert [len(heard(w, 1)) for _ in range(2)] == [1, 0]


def test_fewer_workers_than_the_minimum_is_said() -> None:
    w = world(4, least=3)
    w.runs("worker", 0)
    assert [len(heard(w, seconds)) for seconds in (0, 9, 1, 50)] == [0, 0, 1, 0]
    w.runs("worker", 1, 2)
    assert [len(heard(w, seconds)) for seconds in (1, 29)] == [1, 0]


@pytest.mark.parametrize("wanted", [2, 0])
def test_a_loss_below_the_minimum_is_said_unless_the_user_wants_that(wanted: int) -> None:
    w = world()
    w.runs("worker", 0, 1)
    w.fleet.workers_wanted = wanted
    for id in range(2):
        w.taken("worker", id)
    assert w.said("workers left: 0 of at least 1; replacements start") == (wanted > 0)
    assert not w.said("continues")


def test_what_a_process_waits_for_is_in_the_status() -> None:
    w = world()
    w.waits("worker", 1)
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
    w.taken("worker", 0)
    w.waits("worker", 0)
    w.runs("worker", 0, 99, registers=False)
    assert w.fleet.process("worker", 0).state == "exited"


# ---- shared pods ----


def shared(workers: int, per_pod: int = 2) -> World:
    """Return a job with two workers in each pod, all of them running."""
    w = world(workers, per_pod=per_pod)
    everybody_runs(w)
    return w


def everybody_runs(w: World) -> None:
    w.runs("worker", *(process.id for process in w.fleet.alive("worker")))


def pods(w: World, seconds: float = 0.0) -> list[tuple[int, int]]:
    """Let time pass. Returns (number, number of the pod) of each worker that starts."""
    before = len(w.started)
    w.tick(seconds)
    return numbers(w.started[before:])


def numbers(specs: Sequence[ProcessSpec]) -> list[tuple[int, int]]:
    return [(spec.id, int(spec.pod.removeprefix("worker-"))) for spec in specs]


def test_the_last_pod_has_what_is_left() -> None:
    for per_pod, found in ((2, [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)]), (1, [(0, 0), (1, 1)])):
        w = shared(len(found), per_pod)
        assert numbers(w.started) == found


def test_a_worker_that_is_lost_is_replaced_in_its_pod_also_by_the_next_master() -> None:
    w = shared(4)
    w.kill(1)
    assert pods(w) == [(4, 0)]
    w.exit("worker", 0, code=143)
    assert pods(w) == [(5, 0)], "the pod has the number of a worker that is gone"
    after = w.restart()
    after.kill(3)
    assert pods(after) == [(6, 2)]


def test_a_pod_that_is_lost_is_replaced_by_another_one() -> None:
    w = shared(4)
    for id in (2, 3):
        w.taken("worker", id)
    assert pods(w) == [(4, 4), (5, 4)]


def test_a_pod_that_crashes_is_one_crash_and_the_last_one_fails_the_job() -> None:
    w = shared(2)
    for round in range(5):
        assert w.outcome is None
        first = 2 * round
        assert not round or pods(w, 100) == [(first, first), (first + 1, first)]
        everybody_runs(w)
        # As the launcher tells it: the first one has the cause.
        w.exit("worker", first, code=1, why="oh no")
        w.exit("worker", first + 1, why="its pod ended", own_fault=False)
    assert w.outcome.state == "failed"


def test_fewer_workers_leave_in_whole_pods_and_come_back() -> None:
    w = shared(6)
    w.kill(0)
    assert pods(w) == [(6, 0)]
    everybody_runs(w)
    w.scale(3)
    w.tick()
    assert w.fleet.draining() == [3, 4, 5]
    for id in (3, 4, 5):
        w.exit("worker", id, code=0)
    w.scale(5)
    assert pods(w) == [(7, 2), (8, 8)]


def test_a_pod_that_leaves_takes_nobody_in() -> None:
    w = shared(2)
    w.fleet.workers_wanted = 0
    w.tick()
    w.exit("worker", 1, code=0)
    w.fleet.workers_wanted = 2
    assert pods(w) == [(2, 2)]


# ---- idle pods ----


def crash(w: World, role: str, id: int, *, node: str = "") -> list[tuple[str, str]]:
    """Let a process fail while its pod lives. Returns (name, pod) of what starts next."""
    before = len(w.started)
    w.exit(role, id, code=1, node=node, blames_node=bool(node), pod_lives=True)
    w.tick()
    return [(spec.name, spec.pod) for spec in w.started[before:]]


def released(w: World) -> list[str]:
    return [f"{stop.role}-{stop.id}" for stop in w.stopped]


def test_a_process_that_crashes_is_replaced_in_its_pod() -> None:
    w = shared(2, per_pod=1)
    assert crash(w, "worker", 1) == [("worker-2", "worker-1")]
    everybody_runs(w)
    assert w.started[-1].slot == 1
    # The next crash has to wait, and the pod with it.
    assert crash(w, "worker", 2) == []
    assert pods(w, 0.5) == [(3, 1)]
    assert released(w) == []
    # A pod that is taken away is replaced by another one.
    w.taken("worker", 3)
    assert pods(w, 10) == [(4, 4)]


def test_a_server_that_crashes_is_replaced_in_its_pod() -> None:
    w = world(1, strategy="ps", servers=2, durability={"mode": "journal"})
    everybody_runs(w)
    w.report_model(0)
    w.tick()
    assert crash(w, "ps", 1) == [("ps-2", "ps-1")]
    assert crash(w, "ps", 2) == [("ps-3", "ps-1")]
    w.taken("ps", 3)
    w.tick()
    assert w.started[-1].pod == "ps-4"
    assert released(w) == []


def test_a_pod_ends_if_nothing_is_to_start_in_it() -> None:
    w = shared(3, per_pod=1)
    w.exit("worker", 2, code=143, pod_lives=True)  # asked to leave, by somebody else
    assert pods(w) == [(3, 3)]
    assert released(w) == ["worker-2"]
    w.fleet.workers_wanted = 2
    everybody_runs(w)
    w.tick()
    assert crash(w, "worker", 1) == []
    assert released(w) == ["worker-2", "worker-1"]


def test_a_machine_that_is_avoided_gets_no_successor() -> None:
    w = shared(1, per_pod=1)
    for id in range(2):
        w.fleet.trained(id)
        assert crash(w, "worker", id, node="bad") == [(f"worker-{id + 1}", "worker-0")]
        everybody_runs(w)
    w.fleet.trained(2)
    assert crash(w, "worker", 2, node="bad") == [("worker-3", "worker-3")]
    assert w.started[-1].avoid == ("bad",)
    assert released(w) == ["worker-2"]


def test_the_next_master_knows_no_idle_pods() -> None:
    w = shared(1, per_pod=1)
    w.exit("worker", 0, code=1, pod_lives=True)
    after = w.restart()
    after.tick()
    assert [(spec.id, spec.pod) for spec in after.started] == [(1, "worker-1")]
