"""One server is lost: another takes over its shard, in simulated time."""

from __future__ import annotations

import json

import pytest

from master.state.actions import Become, Flush, Flushed, NotStarted, SaveServers, Start
from master.state.workforce.fleet import Fleet
from master.state.workforce.server_command import ServerCommand
from tests.unit.master.model_file_world import World, every_record
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def world(failover: str = "restart", **options) -> World:
    """Two servers with a journal, and workers, all up."""
    w = World(durability={"mode": "journal", "failover": failover}, **options)
    w.all_up()
    return w


def texts(w: World) -> str:
    return "\n".join(event.text for event in w.job.lifecycle.log.after(0))


def ask(w: World, shard: int, after: int) -> pb.GetClusterResponse | None:
    return w.servers.get_cluster(pb.GetClusterRequest(shard=shard, after=after), w.now)


class TestADeadServer:
    def test_is_replaced_and_nothing_else_changes(self):
        w = world()
        w.work(tasks=2)
        (held,) = w.lease(0).leases
        before, done = w.job.fleet.cluster(), w.job.done()
        w.exit("ps", 1, signal=9)
        starts = [a.spec for a in w.tick() if isinstance(a, Start)]
        assert [s.name for s in starts] == ["ps-2"]
        assert "--shard 1 --shards 2 --incarnation 3" in " ".join(starts[0].args)
        assert w.job.done() == done
        assert w.job.fleet.incarnation == before.incarnation == 1
        assert "ps-1 ended with signal 9; another server takes over shard 1, and nothing is" in (
            texts(w)
        )
        w.do(0, held)
        assert w.lease(0).leases, "tasks are leased while the server starts"
        w.all_up()
        after = w.job.fleet.cluster()
        assert [s.address for s in after.servers] == ["s0", "s2"]
        assert [s.incarnation for s in after.servers] == [1, 3]
        w.work()
        assert w.counted == every_record()
        assert w.outcome.state == "finished"

    def test_does_not_listen_until_its_successor_does(self):
        w = world()
        assert ask(w, 1, after=2) is None
        assert ask(w, 1, after=1) is not None, "a caller that missed a server hears at once"
        w.exit("ps", 1, signal=9)
        w.tick()
        assert ask(w, 1, after=2) is None
        assert [s.address for s in w.servers.cluster_now().cluster.servers] == ["s0", ""]
        assert w.job.fleet.cluster() is None
        w.all_up()
        assert ask(w, 1, after=2).cluster.servers[1].incarnation == 3
        assert ask(w, 0, after=1) is None, "the other shard has not changed"

    def test_is_none_of_the_job_any_more(self):
        w = world()
        w.exit("ps", 0, signal=9)
        w.tick()
        old = pb.ServerHeartbeatRequest(shard=0, incarnation=1)
        assert not w.servers.heartbeat(old, w.now).known
        with pytest.raises(UsageError, match="not a server that this job waits for"):
            w.servers.register(pb.RegisterServerRequest(shard=0, incarnation=1, address="s"), w.now)

    def test_is_not_saved_and_then_is(self):
        w = world(dir="/ck", every=2)
        w.work(tasks=1)
        w.tick()
        effect = w.settle(SaveServers)
        assert [s.incarnation for s in effect.servers] == [1, 2]
        w.exit("ps", 0, signal=9)
        w.tick(20)
        w.all_up()
        w.saved(effect.progress, effect.incarnation)
        w.work(tasks=1)
        w.tick()
        assert [s.incarnation for s in w.settle(SaveServers).servers] == [3, 2]

    def test_in_the_end_is_flushed_again(self):
        w = world(mode="sync")
        w.work()
        w.tick()
        flush = w.settle(Flush)
        assert [s.incarnation for s in flush.servers] == [1, 2]
        w.exit("ps", 0, signal=9)
        w.job.apply(Flushed(flush.incarnation, success=False), w.now)
        w.tick()
        assert not w.actions, "not while the server starts"
        w.all_up()
        assert [s.incarnation for s in w.settle(Flush).servers] == [3, 2]
        assert w.job.fleet.incarnation == 1

    def test_that_dies_by_itself_again_and_again_fails_the_job(self):
        w = world()
        for id in range(2, 7):
            w.exit("ps", id - 1, code=1)
            w.tick()
        assert w.outcome.state == "failed"
        assert "/ps-5.log" in w.outcome.error

    def test_that_is_killed_again_and_again_does_not(self):
        w = world()
        w.work(tasks=1)
        for id in range(2, 60):
            w.exit("ps", id - 1, signal=9)
            w.tick()
        w.all_up()
        w.work()
        assert w.outcome.state == "finished"


class TestAServerThatHangs:
    def test_is_killed_and_replaced(self):
        w = world()
        w.silent.add(1)
        w.tick(9.9)
        assert "declared lost" not in texts(w)
        w.tick(0.2)
        assert "ps-1 declared lost: no heartbeat for 10 s; another server takes over" in texts(w)
        assert [p.id for p in w.job.fleet.alive("ps")] == [0, 2]
        w.all_up()
        w.work()
        assert w.counted == every_record()

    def test_takes_the_model_to_the_checkpoint_without_a_journal(self):
        w = World()
        w.all_up()
        w.work(tasks=2)
        w.silent |= {0, 1}
        w.tick(10)
        assert "ps-0 declared lost: no heartbeat for 10 s; the servers restart" in texts(w)
        assert "ps-1 declared" not in texts(w)
        assert w.job.fleet.incarnation == 2
        assert ask(w, 0, after=1).cluster.incarnation == 2
        w.all_up()
        w.counted.clear()
        w.work()
        assert w.counted == every_record()

    def test_may_take_long_to_say_its_first_word(self):
        w = World(durability={"mode": "journal"})
        w.silent |= {0, 1}
        w.tick()
        w.tick(179)
        assert "declared lost" not in texts(w)
        w.tick(2)
        assert "ps-0 declared lost: no heartbeat for 180 s" in texts(w)

    def test_may_restore_for_long_if_it_is_heard(self):
        w = World(durability={"mode": "journal"})
        w.tick()
        for _ in range(100):
            w.tick(9)
        assert "declared lost" not in texts(w)


def test_a_server_that_has_lost_the_shard_takes_the_model_to_the_checkpoint():
    w = world(dir="/ck", every=4)
    w.work(tasks=2)
    w.tick()
    saved, counted = w.save(), w.counted.copy()
    w.work(tasks=2)
    w.exit("ps", 1, signal=9)
    w.tick()
    lost = pb.RegisterServerRequest(
        shard=1, incarnation=3, address="s2", lost="its peer is gone too"
    )
    w.servers.register(lost, w.now)
    text = f"ps-2 cannot restore shard 1: its peer is gone too; the servers restart from {saved}"
    assert text.removesuffix(str(saved)) in texts(w)
    assert ", and train 8 records again" in texts(w)
    assert w.job.fleet.incarnation == 2
    w.all_up()
    w.counted = counted
    w.work()
    assert w.counted == every_record()


def test_what_a_repair_left_out_is_said_once():
    w = world()
    w.work(tasks=2)
    w.exit("ps", 1, signal=9)
    w.tick()
    found = pb.RegisterServerRequest(
        shard=1, incarnation=3, address="s2", updates_lost=2, damage="record 7 is damaged"
    )
    for _ in range(2):
        w.servers.register(found, w.now)
    said = "ps-2 goes on without 2 updates of shard 1, lost for good: record 7 is damaged"
    assert texts(w).count(said) == 1
    w.exit("ps", 2, signal=9)
    w.tick()
    again = pb.RegisterServerRequest(
        shard=1, incarnation=4, address="s3", updates_lost=3, damage="record 9 is damaged"
    )
    w.servers.register(again, w.now)
    assert "without 1 update of shard 1, lost for good: record 9" in texts(w)
    assert w.job.lifecycle.updates_lost == 3
    w.work()
    assert w.counted == every_record()


def test_a_problem_is_an_event_and_in_the_status():
    w = world()

    def say(problem: str) -> None:
        w.servers.heartbeat(
            pb.ServerHeartbeatRequest(shard=0, incarnation=1, problem=problem), w.now
        )

    for _ in range(3):
        say("journal: no space left on device")
    assert texts(w).count("ps-0: journal: no space left on device") == 1
    assert w.job.fleet.process("ps", 0).problem == "journal: no space left on device"
    say("")
    assert "ps-0 accepts pushes again" in texts(w)


def test_after_the_end_there_are_no_servers():
    w = world()
    w.work()
    assert w.outcome is not None
    assert ask(w, 0, after=1) == pb.GetClusterResponse()


class TestAWorkerThatBecomesAServer:
    def test_is_the_youngest_and_its_tasks_go_to_others(self):
        w = world(workers=3, failover="worker")
        (held,) = w.lease(2).leases
        w.exit("ps", 1, signal=9)
        actions = w.tick()
        assert Become(worker=2, server=2) in actions
        assert [a.spec.name for a in actions if isinstance(a, Start)] == ["worker-3"]
        assert "worker-2 becomes ps-2; its tasks were returned to the queue" in texts(w)
        (again,) = w.lease(0).leases
        assert (again.task_id, again.retried) == (held.task_id, True)
        w.release(0, again)
        answer = w.calls.heartbeat(pb.HeartbeatRequest(worker_id=2), w.now)
        assert answer.known
        assert " ".join(answer.server_args).startswith(
            "--job j --shard 1 --shards 2 --incarnation 3"
        )
        assert not w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now).server_args
        worker, server = w.job.fleet.process("worker", 2), w.job.fleet.process("ps", 2)
        assert (worker.state, worker.exit, server.pid) == ("exited", "became ps-2", worker.pid)
        w.alive.discard(2)
        w.all_up()
        assert w.job.fleet.cluster().servers[1].incarnation == 3
        w.work()
        assert w.counted == every_record()

    def test_is_not_the_last_worker(self):
        w = world(workers=1, failover="worker")
        w.exit("ps", 1, signal=9)
        assert [a.spec.name for a in w.tick() if isinstance(a, Start)] == ["ps-2"]

    def test_and_does_not_is_ended_for_a_new_process(self):
        w = world(workers=3, failover="worker")
        w.exit("ps", 1, signal=9)
        w.silent.add(2)
        w.tick()
        w.tick(14)
        assert "does not run" not in texts(w)
        w.tick(1)
        assert "ps-2 does not run 15 s after its start; another server takes over" in texts(w)
        assert not w.job.fleet.process("ps", 3).was_worker
        w.alive.discard(2)
        w.all_up()
        w.work()
        assert w.counted == every_record()

    def test_a_successor_that_begins_as_slowly_has_more_time(self):
        w = world(workers=3, failover="worker")

        def wait(seconds: int) -> None:
            for _ in range(seconds):
                for worker in (0, 1):
                    w.calls.heartbeat(pb.HeartbeatRequest(worker_id=worker), w.now)
                w.tick(1)

        w.exit("ps", 1, signal=9)
        w.silent |= {2, 3}
        w.tick()
        wait(15)
        assert "ps-2 does not run 15 s after its start" in texts(w)
        wait(29)
        assert "ps-3 does not run" not in texts(w)
        wait(2)
        assert "ps-3 does not run 30 s after its start" in texts(w)
        w.all_up()
        w.tick()
        w.exit("ps", 4, signal=9)
        w.silent.add(5)
        w.tick()
        wait(16)
        assert "ps-5 does not run 15 s after its start" in texts(w), "ps-4 was heard"

    def test_hears_so_from_the_next_master(self):
        w = world(workers=3, failover="worker")
        w.job.fleet.started("worker", 2, pid=7, since=70)
        w.exit("ps", 1, signal=9)
        w.tick()
        fleet = Fleet(ServerCommand(job="j"), workers=3, servers=2)
        fleet.from_state(json.loads(json.dumps(w.job.fleet.to_state())), w.now)
        assert fleet.duties.of(2) == w.job.fleet.duties.of(2) != []
        server = fleet.process("ps", 2)
        assert (server.pid, server.since) == (7, 70), "it is adopted as the server"

    def test_serves_where_a_process_cannot_be_started(self):
        w = world(workers=2)
        w.exit("ps", 0, signal=9)
        w.tick()
        w.job.apply(NotStarted("ps", 2, "no memory"), w.now)
        assert Become(worker=1, server=3) in w.tick()
        assert "ps-2 cannot be started: no memory; another server takes over shard 0" in texts(w)
        w.job.apply(NotStarted("worker", 2, "no memory"), w.now)
        assert "worker-2 cannot be started: no memory; the next attempt follows" in texts(w)
        assert not [a for a in w.tick(9) if isinstance(a, Start)]
        assert [a.spec.name for a in w.tick(1) if isinstance(a, Start)] == ["worker-3"]
        assert w.outcome is None

    def test_serves_where_a_process_does_not_come_to_run(self):
        w = world(workers=2)
        w.exit("ps", 0, signal=9)
        w.silent.add(2)
        w.tick()
        for _ in range(3):
            for worker in (0, 1):
                w.calls.heartbeat(pb.HeartbeatRequest(worker_id=worker), w.now)
            actions = w.tick(5)
        assert Become(worker=1, server=3) in actions

    def test_that_dies_before_is_followed_by_another(self):
        w = world(workers=3, failover="worker")
        w.exit("ps", 1, signal=9)
        w.tick()
        w.exit("ps", 2, code=0)
        assert Become(worker=1, server=3) in w.tick()


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_what_cannot_be_started_at_all_fails_the_job(role: str) -> None:
    w = World(workers=1, durability={"mode": "journal"})
    w.tick()
    w.exit("worker", 0, signal=9)
    w.job.apply(NotStarted(role, 0, "no memory"), w.now)
    assert w.outcome.error == f"{role}-0 cannot be started: no memory"
