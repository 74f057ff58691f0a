"""Processes that are asked for, and run when a machine has room: in simulated time, no API."""

from __future__ import annotations

from typing import Any

from master.state.actions import Become, Failure, Start, Stop
from master.state.workforce.failover import Failover
from master.state.workforce.fleet import Fleet
from master.state.workforce.machines import Machines
from master.state.workforce.processes import Gone
from master.state.workforce.server_command import ServerCommand
from master.state.workforce.waiting import Census, Waiting
from tests.unit.master.model_file_world import World
from torch_edl.config import DurabilityConfig, JobConfig
from torch_edl.processes.spec import ProcessExit, ProcessRefused, ProcessRuns, ProcessWaits

NO_ROOM = "no node has room: 0/3 nodes are available: 3 Insufficient cpu"


def waits(role: str, id: int, why: str = NO_ROOM, *, placed: bool = False) -> ProcessWaits:
    return ProcessWaits(role=role, id=id, why=why, fix="ask for less", placed=placed)


def taken(role: str, id: int, why: str = "preempted", **more: Any) -> ProcessExit:
    return ProcessExit(role=role, id=id, code=143, why=why, own_fault=False, **more)


def fleet(workers: int, *, servers: int = 2, strategy: str = "") -> Fleet:
    found = Fleet(ServerCommand(job="job"), workers=workers, servers=servers, asks=True, life="ab")
    if strategy:
        found.decide(strategy, restore="")
    return found


def started(fleet: Fleet, now: float) -> list[str]:
    return [a.spec.name for a in fleet.plan(now) if isinstance(a, Start)]


def wait(fleet: Fleet, role: str, id: int, now: float, **more: Any) -> None:
    process = fleet.process(role, id)
    assert process is not None
    process.wait(waits(role, id, **more), now)


def run(fleet: Fleet, role: str, id: int, now: float, node: str = "n1") -> None:
    process = fleet.process(role, id)
    assert process is not None
    process.run(ProcessRuns(role=role, id=id, node=node), now)


def test_all_workers_are_asked_for_at_once_and_pending_ones_join_later() -> None:
    f = fleet(16)
    assert len(started(f, 0.0)) == 16
    run(f, "worker", 0, 1.0)
    assert f.registered(0)
    # Hours later: nothing else is asked for, and nobody is overdue.
    for id in range(1, 16):
        wait(f, "worker", id, 2.0)
    assert f.plan(36_000.0) == []
    run(f, "worker", 7, 36_001.0)
    assert f.plan(36_002.0) == []
    assert f.registered(7)


def test_the_time_to_register_begins_when_the_process_runs() -> None:
    f = fleet(1)
    started(f, 0.0)
    run(f, "worker", 0, 1000.0)
    assert f.plan(1179.0) == []
    assert f.plan(1180.0) == [Stop("worker", 0, 0.0)]


def test_a_worker_may_register_before_anybody_says_that_it_runs() -> None:
    f = fleet(1)
    started(f, 0.0)
    assert f.registered(0)
    run(f, "worker", 0, 1.0)
    assert [p.state for p in f] == ["running"]
    wait(f, "worker", 0, 2.0)  # a late message of before
    assert [p.state for p in f] == ["running"]


def test_fewer_workers_wanted_ends_those_first_that_do_not_run() -> None:
    f = fleet(4)
    started(f, 0.0)
    for id in (0, 2, 3):
        run(f, "worker", id, 1.0)
        f.registered(id)
    f.workers_wanted = 3
    assert f.plan(2.0) == []  # it is told first, and stopped with the next tick
    assert f.plan(2.0) == [Stop("worker", 1, 2.0)]
    assert [p.id for p in f.alive("worker") if p.state == "running"] == [0, 2, 3]


def test_preempted_workers_are_replaced_without_limit() -> None:
    f = fleet(2)
    started(f, 0.0)
    for round in range(200):
        now = float(round)
        id = max(p.id for p in f.alive("worker"))
        run(f, "worker", id, now)
        f.registered(id)
        gone = f.exited(taken("worker", id), now, log="log")
        assert gone == Gone(f"worker-{id} was taken away: preempted")
        assert started(f, now) == [f"worker-{id + 1}"]


def test_pods_that_machines_refuse_at_once_are_asked_for_ever_more_slowly() -> None:
    f = fleet(1)
    started(f, 0.0)
    now, times = 0.0, []
    for id in range(9):
        f.exited(taken("worker", id, "its node had no room left"), now, log="")
        before = now
        while not started(f, now):
            now += 0.5
        times.append(now - before)
    assert times == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_crashes_of_user_code_stay_bounded() -> None:
    f = fleet(1)
    found: Any = None
    for id in range(5):
        now = 100.0 * id
        assert started(f, now) == [f"worker-{id}"]
        run(f, "worker", id, now)
        f.registered(id)
        found = f.exited(ProcessExit(role="worker", id=id, code=1, why="oh no"), now, log="pod/x")
    assert isinstance(found, Failure)
    assert "exit code 1: oh no" in found.error


def test_out_of_memory_counts_as_a_crash() -> None:
    f = fleet(1)
    found: Any = None
    for id in range(5):
        started(f, 100.0 * id)
        exit = ProcessExit(role="worker", id=id, code=137, why="out of memory", own_fault=True)
        found = f.exited(exit, 100.0 * id, log="")
    assert isinstance(found, Failure)


def test_a_place_is_taken_again_when_it_is_free() -> None:
    f = fleet(3)
    assert [a.spec.place for a in f.plan(0.0) if isinstance(a, Start)] == [0, 1, 2]
    f.registered(1)
    f.exited(taken("worker", 1), 1.0, log="")
    assert [a.spec.place for a in f.plan(1.0) if isinstance(a, Start)] == [1]


# ---- servers ----


def failover(f: Fleet, mode: str) -> Failover:
    durability = DurabilityConfig(mode=mode)
    return Failover(JobConfig(name="j", model_file="/m.py", durability=durability), f)


def with_workers(mode: str) -> tuple[Fleet, Failover]:
    """Two workers run and wait for the one server, which no machine has room for."""
    f = fleet(3, servers=1, strategy="ps")
    f.plan(0.0)
    for id in range(2):
        run(f, "worker", id, 1.0)
        f.registered(id)
    wait(f, "worker", 2, 1.0)
    wait(f, "ps", 0, 1.0)
    return f, failover(f, mode)


def test_a_worker_takes_the_role_of_a_server_for_which_there_is_no_room() -> None:
    for mode in ("checkpoint", "journal"):
        f, over = with_workers(mode)
        assert list(over.tick(14.0, counts_silence=True)) == []
        [note] = over.tick(16.0, counts_silence=True)
        assert "ps-0 does not run 15 s after its start" in note.text
        actions = f.plan(16.0)
        assert Become(worker=1, server=1) in actions
        assert f.duties.of(1)
        server, worker = f.process("ps", 1), f.process("worker", 1)
        assert server is not None
        assert worker is not None
        assert (server.state, server.started_as, server.node) == ("starting", "worker-1", "n1")
        assert worker.exit == "became ps-1"
        # The pod that waits is not wanted any more.
        assert Stop("ps", 0, 0.0) in [*actions, *f.plan(17.0)]


def test_a_server_whose_image_is_being_pulled_is_waited_for() -> None:
    for mode in ("checkpoint", "journal"):
        f, over = with_workers(mode)
        wait(f, "ps", 0, 2.0, why="", placed=True)
        assert list(over.tick(3600.0, counts_silence=True)) == []


def test_the_last_worker_stays_one() -> None:
    f, over = with_workers("checkpoint")
    f.exited(taken("worker", 1), 2.0, log="")
    assert list(over.tick(60.0, counts_silence=True)) == []


# ---- machines ----


def test_a_machine_that_loses_processes_is_avoided_for_a_while() -> None:
    machines = Machines()
    assert machines.lost("n1", "exit code 1", 0.0) == []
    assert machines.lost("n1", "exit code 1", 100.0) == []
    assert machines.avoided(100.0) == ()
    [note] = machines.lost("n1", "exit code 1", 200.0)
    assert "n1 lost 3 processes within 10 minutes" in note.text
    assert machines.avoided(200.0) == ("n1",)
    assert machines.lost("n1", "exit code 1", 300.0) == []  # said once
    assert machines.avoided(699.0) == ("n1",)
    assert machines.avoided(701.0) == ()


def test_losses_that_are_far_apart_speak_against_no_machine() -> None:
    machines = Machines()
    for i in range(20):
        assert machines.lost("n1", "x", 301.0 * i) == []
        assert machines.avoided(301.0 * i) == ()


def test_an_unknown_machine_is_not_counted_and_their_number_is_bounded() -> None:
    machines = Machines()
    for i in range(10_000):
        machines.lost("", "x", 0.0)
        machines.lost(f"n{i}", "x", 0.0)
    assert len(machines._losses) == 1000


def world(**more: Any) -> World:
    return World(workers=2, servers=1, asks=True, **more)


def texts(world: World) -> list[str]:
    return [event.text for event in world.job.lifecycle.log.after(0)]


def test_a_machine_that_eats_processes_is_named_and_avoided_in_what_starts_next() -> None:
    w = world()
    for id in range(3):
        w.tick()
        w.job.apply(ProcessRuns(role="worker", id=id, node="n7"), w.now)
        exit = ProcessExit(role="worker", id=id, code=137, node="n7", blames_node=True)
        w.job.exited(exit, w.now, log="")
    assert any("n7 lost 3 processes" in text for text in texts(w))
    specs = [a.spec for a in w.tick(60.0) if isinstance(a, Start)]
    assert specs
    assert all(spec.avoid == ("n7",) for spec in specs)


def test_a_worker_that_was_asked_to_leave_does_not_speak_against_its_machine() -> None:
    w = world()
    for id in range(2):
        process = w.job.fleet.process("worker", id)
        assert process is not None
        for _ in range(3):
            process.state = "draining"
            exit = ProcessExit(role="worker", id=id, code=1, node="n7", blames_node=True)
            w.job.apply_all(w.job.workforce.ended(exit, w.now), w.now)
    assert w.job.fleet.machines.avoided(w.now) == ()


# ---- what the user hears ----


def heard(f: Fleet, waiting: Waiting, now: float) -> list[str]:
    return [note.text for note in waiting.tick(Census.of(f.alive()), now)]


def test_why_processes_wait_is_said_once() -> None:
    f, waiting = fleet(16), Waiting(min_workers=1)
    started(f, 0.0)
    run(f, "worker", 0, 0.0)
    for id in range(1, 16):
        wait(f, "worker", id, 1.0)
    assert heard(f, waiting, 2.0) == []  # most are placed within seconds
    assert heard(f, waiting, 3.0) == [f"15 workers wait: {NO_ROOM}; ask for less"]
    for id in range(1, 16):
        wait(f, "worker", id, 4.0, why=NO_ROOM.replace("3 nodes", "4 nodes"))
    assert heard(f, waiting, 100.0) == []
    for id in range(1, 16):
        run(f, "worker", id, 101.0)
    assert heard(f, waiting, 102.0) == ["no workers wait any more"]
    assert heard(f, waiting, 103.0) == []


def test_another_cause_is_said_too_but_not_each_second() -> None:
    f, waiting = fleet(1), Waiting(min_workers=0)
    started(f, 0.0)
    wait(f, "worker", 0, 0.0)
    assert heard(f, waiting, 2.0) == [f"worker-0 waits: {NO_ROOM}; ask for less"]
    wait(f, "worker", 0, 3.0, why="the image x cannot be pulled: not found")
    assert heard(f, waiting, 3.0) == []
    assert heard(f, waiting, 32.0) == [
        "worker-0 waits: the image x cannot be pulled: not found; ask for less"
    ]


def test_fewer_workers_than_the_minimum_is_said() -> None:
    f, waiting = fleet(4), Waiting(min_workers=3)
    started(f, 0.0)
    run(f, "worker", 0, 0.0)
    assert heard(f, waiting, 0.0) == []
    assert heard(f, waiting, 9.0) == []
    assert heard(f, waiting, 10.0) == ["workers that run: 1, minimum: 3; 3 wait for a place"]
    assert heard(f, waiting, 60.0) == []
    for id in (1, 2):
        run(f, "worker", id, 61.0)
    assert heard(f, waiting, 61.0) == ["workers that run: 3, minimum: 3"]
    assert heard(f, waiting, 90.0) == []


def test_a_loss_below_the_minimum_is_said_though_replacements_are_pending() -> None:
    w = world()
    for id in range(2):
        w.job.apply(ProcessRuns(role="worker", id=id, node="n1"), w.now)
    for id in range(2):
        w.job.exited(taken("worker", id, node="n1"), w.now, log="")
    assert texts(w)[-1] == "workers left: 0, minimum: 1; waiting for replacements"


def test_a_worker_that_the_user_wants_no_more_is_no_loss() -> None:
    w = world()
    for id in range(2):
        w.job.apply(ProcessRuns(role="worker", id=id, node="n1"), w.now)
    w.job.fleet.workers_wanted = 0
    before = texts(w)
    w.job.exited(taken("worker", 0, node="n1"), w.now, log="")
    w.job.exited(taken("worker", 1, node="n1"), w.now, log="")
    assert not any("workers left" in text for text in texts(w)[len(before) :])


def test_what_a_process_waits_for_is_in_the_status() -> None:
    from master.state.job.status import describe
    from torch_edl.wire import master_pb2 as pb

    w = world()
    w.job.apply(waits("worker", 1), w.now)
    status = describe(
        w.job, events_after=0, now=w.now, master=pb.ProcessStatus(), log_path=lambda *_: ""
    )
    [found] = [p for p in status.processes if p.role == "worker" and p.id == 1]
    assert (found.state, found.problem) == ("pending", NO_ROOM)


def test_a_pod_that_can_never_run_fails_the_job_as_the_users_matter() -> None:
    w = world()
    w.job.apply(ProcessRefused(role="worker", id=0, why="no such image; name another"), w.now)
    assert w.outcome.state == "failed"
    assert w.outcome.usage_error
    assert w.outcome.error == "worker-0 will never run: no such image; name another"


def test_words_about_a_process_that_has_ended_change_nothing() -> None:
    w = world()
    w.job.exited(taken("worker", 0), w.now, log="")
    w.job.apply(waits("worker", 0), w.now)
    w.job.apply(ProcessRuns(role="worker", id=0), w.now)
    w.job.apply(ProcessRuns(role="worker", id=99), w.now)
    process = w.job.fleet.process("worker", 0)
    assert process is not None
    assert process.state == "exited"
