"""One server is lost: another takes over its shard."""

from __future__ import annotations

import pytest

from master.state.actions import Flush, Flushed, SaveServers, Start
from master.state.calls import server_calls
from tests.unit.master.world import World, every_record, running
from torch_edl.errors import UsageError
from torch_edl.processes.launcher import ProcessNotStarted
from torch_edl.wire import master_pb2 as pb


def world(failover: str = "restart", **options) -> World:
    """Return a job whose two servers keep journals, all up."""
    return running(durability={"mode": "journal", "failover": failover}, **options)


def ask(w: World, shard: int, after: int) -> pb.GetClusterResponse | None:
    return w.call(server_calls.get_cluster, pb.GetClusterRequest(shard=shard, after=after))


def starts(actions) -> list[str]:
    return [a.spec.name for a in actions if isinstance(a, Start)]


class TestADeadServer:
    def test_is_replaced_and_nothing_else_changes(self):
        w = world()
        w.work(tasks=2)
        held = w.task()
        before, done = w.fleet.cluster(), w.job.done()
        w.exit("ps", 1, signal=9)
        assert starts(w.tick()) == ["ps-2"]
        assert "--shard 1 --shards 2 --incarnation 3" in " ".join(w.started[-1].args)
        assert w.job.done() == done
        assert w.fleet.model.incarnation == before.incarnation == 1
        assert w.said("ps-1 ended with signal 9")
        w.do(0, held)
        assert w.lease(0).leases, "tasks are leased while the server starts"
        w.all_up()
        after = w.fleet.cluster().servers
        assert [(s.address, s.incarnation) for s in after] == [("s0", 1), ("s2", 3)]
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
        assert [s.address for s in server_calls.cluster_now(w.job).cluster.servers] == ["s0", ""]
        assert w.fleet.cluster() is None
        w.all_up()
        assert ask(w, 1, after=2).cluster.servers[1].incarnation == 3
        assert ask(w, 0, after=1) is None, "the other shard has not changed"
        w.work()
        assert ask(w, 0, after=1) == pb.GetClusterResponse(), "the job is over"

    def test_is_none_of_the_job_any_more(self):
        w = world()
        w.exit("ps", 0, signal=9)
        w.tick()
        old = pb.ServerHeartbeatRequest(shard=0, incarnation=1)
        assert not w.call(server_calls.heartbeat, old).known
        with pytest.raises(UsageError, match="shard 0, incarnation 1"):
            w.server_register(0, 1, 0)

    def test_is_not_saved_and_then_is(self):
        w = world(dir="/ck", every=2)
        w.work(tasks=1)
        w.tick()
        effect = w.effect(SaveServers)
        assert [s.incarnation for s in effect.servers] == [1, 2]
        w.exit("ps", 0, signal=9)
        w.tick(20)
        w.all_up()
        w.saved(effect.progress, effect.incarnation)
        w.work(tasks=1)
        w.tick()
        assert [s.incarnation for s in w.effect(SaveServers).servers] == [3, 2]

    def test_in_the_end_is_flushed_again(self):
        w = world(mode="sync")
        w.work()
        w.tick()
        flush = w.effect(Flush)
        assert [s.incarnation for s in flush.servers] == [1, 2]
        w.exit("ps", 0, signal=9)
        w.apply(Flushed(flush.incarnation, success=False))
        w.tick()
        assert not w.actions, "not while the server starts"
        w.all_up()
        assert [s.incarnation for s in w.effect(Flush).servers] == [3, 2]
        assert w.fleet.model.incarnation == 1

    def test_that_dies_by_itself_again_and_again_fails_the_job(self):
        w = world()
        for id in range(1, 6):
            assert w.outcome is None
            w.exit("ps", id, code=1)
            w.tick()
        assert "/ps-5.log" in w.outcome.error

    def test_that_is_killed_again_and_again_does_not(self):
        w = world()
        w.work(tasks=1)
        for id in range(1, 59):
            w.exit("ps", id, signal=9)
            w.tick()
        w.all_up()
        w.work()
        assert w.outcome.state == "finished"


class TestAServerThatHangs:
    def test_is_killed_and_replaced(self):
        w = world()
        w.silent.add(1)
        w.tick(9.9)
        assert not w.said("declared lost")
        w.tick(0.2)
        assert w.said("ps-1 declared lost: no heartbeat for 10 s")
        assert [p.id for p in w.fleet.alive("ps")] == [0, 2]
        w.all_up()
        w.work()
        assert w.counted == every_record()

    def test_takes_the_model_to_the_checkpoint_without_a_journal(self):
        w = running()
        w.work(tasks=2)
        w.silent |= {0, 1}
        w.tick(10)
        assert [w.said(f"ps-{id} declared lost") for id in (0, 1)] == [1, 0]
        assert w.fleet.model.incarnation == 2
        assert ask(w, 0, after=1).cluster.incarnation == 2
        w.all_up()
        w.counted.clear()
        w.work()
        assert w.counted == every_record()

    def test_may_take_long_to_say_its_first_word_or_to_restore_if_it_is_heard(self):
        w = World(durability={"mode": "journal"})
        w.tick()
        for _ in range(100):
            w.tick(9)
        assert not w.said("declared lost")
        w = World(durability={"mode": "journal"})
        w.silent |= {0, 1}
        w.tick()
        w.tick(179)
        assert not w.said("declared lost")
        w.tick(2)
        assert w.said("ps-0 declared lost: no heartbeat for 180 s")


def test_a_server_that_has_lost_the_shard_takes_the_model_to_the_checkpoint():
    w = world(dir="/ck", every=4)
    w.work(tasks=2)
    w.tick()
    saved, counted = w.save(), w.counted.copy()
    w.work(tasks=2)
    w.exit("ps", 1, signal=9)
    w.tick()
    w.server_register(1, 3, 2, lost="its peer is gone too")
    (text,) = [text for text in w.texts("error") if "ps-2" in text]
    assert all(x in text for x in ("shard 1", "its peer is gone too", str(saved.path), "8 records"))
    assert w.fleet.model.incarnation == 2
    w.all_up()
    w.counted = counted
    w.work()
    assert w.counted == every_record()


def test_what_a_repair_left_out_is_said_once():
    w = world()
    w.work(tasks=2)
    w.exit("ps", 1, signal=9)
    w.tick()
    for _ in range(2):
        w.server_register(1, 3, 2, updates_lost=2, damage="record 7 is damaged")
    assert w.said("ps-2 goes on without 2 updates of shard 1") == 1
    w.exit("ps", 2, signal=9)
    w.tick()
    w.server_register(1, 4, 3, updates_lost=3, damage="record 9 is damaged")
    assert w.said("without 1 update of shard 1, lost for good: record 9")
    assert w.job.lifecycle.updates_lost == 3
    w.work()
    assert w.counted == every_record()


def test_a_problem_is_an_event_and_in_the_status():
    w, problem = world(), "journal: no space left on device"
    server = w.fleet.process("ps", 0)
    for _ in range(3):
        w.server_beat(server, problem=problem)
    assert w.said(f"ps-0: {problem}") == 1
    assert server.problem == problem
    w.server_beat(server, problem="")
    assert w.said("ps-0 accepts pushes again")


class TestAWorkerThatMakesRoom:
    """In pods. On machines, a server simply starts."""

    def test_is_the_youngest_and_its_tasks_go_to_others(self):
        w = world(workers=3, failover="worker", cluster=True)
        held = w.task(2)
        w.taken("ps", 1)
        actions = w.tick()
        assert starts(actions) == ["ps-2"]
        assert (w.started[-1].pod, w.started[-1].slot) == ("worker-2", 2)
        assert [(stop.role, stop.id, stop.grace_s) for stop in w.stopped] == [("worker", 2, 0.0)]
        assert w.said("worker-2 makes room for a server")
        again = w.task(0)
        assert (again.task_id, again.retried) == (held.task_id, True)
        w.release(0, again)
        assert starts(w.tick()) == ["worker-3"]
        assert (w.started[-1].pod, w.started[-1].slot) == ("worker-3", 3), "slot 2 has the server"
        w.alive.discard(2)
        w.all_up()
        assert w.fleet.cluster().servers[1].incarnation == 3
        # If the server crashes alone, its successor has the same place.
        w.exit("ps", 2, code=1, pod_lives=True)
        assert starts(w.tick()) == ["ps-3"]
        assert (w.started[-1].pod, w.started[-1].slot) == ("worker-2", 2)
        w.all_up()
        w.work()
        assert w.counted == every_record()

    def test_makes_room_for_one_server_only(self):
        w = world(workers=4, failover="worker", cluster=True)
        w.taken("ps", 0)
        w.taken("ps", 1)
        w.tick()
        pods = {spec.name: spec.pod for spec in w.started if spec.role == "ps"}
        assert pods.items() >= {"ps-2": "worker-3", "ps-3": "worker-2"}.items()

    def test_is_not_the_last_worker_and_is_in_a_pod(self):
        for options in ({"cluster": True}, {"workers": 3}):
            w = world(failover="worker", **options)
            w.exit("ps", 1, signal=9)
            assert starts(w.tick()) == ["ps-2"]
            assert not w.stopped

    def test_is_not_asked_while_the_pod_of_the_server_lives(self):
        w = world(workers=3, failover="worker", cluster=True)
        w.exit("ps", 1, signal=9, pod_lives=True)
        assert starts(w.tick()) == ["ps-2"]
        assert w.started[-1].pod == "ps-1"
        assert not w.stopped

    def test_has_more_time_if_its_predecessor_was_slow_and_a_new_pod_follows(self):
        w = world(workers=3, failover="worker", cluster=True)
        w.taken("ps", 1)
        w.silent |= {2, 3}
        w.alive.discard(2)
        w.tick()
        w.runs("ps", 2)
        w.pass_time(14.5)
        assert not w.said("ps-2 does not run")
        w.pass_time(0.5)
        assert w.said("ps-2 does not run 15 s after its start")
        assert w.fleet.process("ps", 3).pod == "ps-3"
        w.runs("ps", 3)
        w.pass_time(29)
        assert not w.said("ps-3 does not run")
        w.pass_time(1.5)
        assert w.said("ps-3 does not run 30 s after its start")

    def test_is_known_to_the_next_master(self):
        w = world(workers=3, failover="worker", cluster=True)
        w.taken("ps", 1)
        w.tick()
        again = w.restart()
        server = again.fleet.process("ps", 2)
        assert (server.pod, server.slot, server.state) == ("worker-2", 2, "pending")
        assert again.fleet.servers.of(1, 3) is server

    def test_that_is_lost_with_the_server_is_followed_by_a_new_pod(self):
        w = world(workers=3, cluster=True)
        w.taken("ps", 1)
        w.tick()
        w.waits("ps", 2)
        w.silent |= {2, 3}
        w.pass_time(16)
        assert w.fleet.process("ps", 3).pod == "worker-2"
        w.taken("ps", 3, "its pod has ended")
        w.tick()
        assert w.fleet.process("ps", 4).pod == "ps-4"


def test_a_server_that_cannot_be_started_is_tried_again() -> None:
    w = world(workers=2)
    w.exit("ps", 0, signal=9)
    w.tick()
    w.apply(ProcessNotStarted(role="ps", id=2, why="no memory"))
    assert w.said("ps-2 cannot be started: no memory")
    assert not starts(w.tick(9))
    assert starts(w.tick(1)) == ["ps-3"]
    assert w.outcome is None


def test_a_worker_that_cannot_be_started_is_tried_again() -> None:
    w = world(workers=2)
    w.kill(0)
    w.tick()
    w.apply(ProcessNotStarted(role="worker", id=2, why="no memory"))
    assert w.said("worker-2 cannot be started: no memory")
    assert not starts(w.tick(9))
    assert starts(w.tick(1)) == ["worker-3"]
    assert w.outcome is None


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_what_cannot_be_started_at_all_fails_the_job(role: str) -> None:
    w = World(durability={"mode": "journal"})
    w.tick()
    w.kill(0)
    w.apply(ProcessNotStarted(role=role, id=0, why="no memory"))
    assert f"{role}-0" in w.outcome.error
    assert "no memory" in w.outcome.error
