"""Servers that keep copies for each other, in simulated time."""

from __future__ import annotations

from master.state.job.restart import to_state
from master.state.job.status import describe
from master.state.lifecycle import RETURN_WITHIN_S
from tests.unit.master.model_file_world import World
from torch_edl.wire import master_pb2 as pb


def world(servers: int = 3) -> World:
    """Servers with copies of their shards at their peers, and a worker, all up."""
    w = World(durability={"mode": "replica"}, servers=servers)
    w.all_up()
    w.tick(1)
    return w


def expendable(w: World) -> list[int]:
    master = pb.ProcessStatus(role="master")
    found = describe(w.job, events_after=0, now=w.now, master=master, log_path=lambda r, i: "")
    return [p.id for p in found.processes if p.state != "exited" and p.expendable]


class TestWhatMayBeLost:
    def test_is_any_server_once_all_have_copies(self):
        w = world()
        assert expendable(w) == [0, 1, 2]

    def test_is_anything_before_there_are_copies(self):
        """Nothing was acknowledged."""
        w = World(durability={"mode": "replica"}, servers=3)
        w.tick()
        assert expendable(w) == [0, 1, 2]

    def test_is_no_server_that_another_one_needs(self):
        w = world(servers=4)
        w.exit("ps", 1, signal=9)
        # Shard 1 is only on ps-2 now, and shard 0 on ps-0.
        assert expendable(w) == [3]
        w.tick()
        assert expendable(w) == [3, 4], "the successor has nothing of its own yet"
        w.up()
        assert 0 not in expendable(w), "its new peer has no copy yet"
        w.tick(1)
        w.tick(1)
        assert expendable(w) == [0, 2, 3, 4]


def asked(w: World, id: int) -> bool:
    """A server got SIGTERM; whether it is to serve on."""
    (process,) = (p for p in w.job.fleet.servers if p.id == id)
    return w.beat(process, leaving=True).stay


class TestServersThatAreAskedToLeave:
    def test_leave_at_once(self):
        w = world()
        assert not asked(w, 1)
        assert not asked(w, 1), "a second time: it is not its own neighbour"

    def test_leave_one_after_the_other_if_they_need_each_other(self):
        for servers in (2, 3):
            w = world(servers)
            assert not asked(w, 0)
            assert [asked(w, id) for id in range(1, servers)] == [True] * (servers - 1)
            w.exit("ps", 0, code=143)
            w.tick()
            assert asked(w, 1), "the successor fetches its copy from here"
            w.up()
            w.tick(1)
            assert not asked(w, 1)
            assert w.job.lifecycle.rollbacks == 0
            assert len([t for t in w.texts() if "ps-1 was asked to leave" in t]) == 1

    def test_leave_together_if_they_do_not(self):
        w = world(4)
        assert [asked(w, id) for id in (0, 2, 1, 3)] == [False, False, True, True]

    def test_leave_at_the_end_of_the_job(self):
        w = world(2)
        w.job.stop("enough", w.now, at_once=True)
        assert not any(w.beat(process, leaving=True).stay for process in w.job.fleet.servers)


def test_a_restarted_master_looks_for_copies_that_were_noted() -> None:
    w = World(durability={"mode": "replica"}, servers=2)
    w.up()
    servers = list(w.job.fleet.servers)
    told = {"shard": 0, "incarnation": servers[0].incarnation, "keeper": servers[1].incarnation}
    request = pb.ServerHeartbeatRequest(**told, note=1, has_copy=True)
    assert w.servers.heartbeat(request, w.now).noted == 1, "which is answered once that is kept"
    after = World(durability={"mode": "replica"}, servers=2, left=to_state(w.job))
    found = after.job.fleet.servers
    assert (found.has_copy(0), found.has_copy(1)) == (True, False)


def test_servers_have_time_to_find_a_master_that_was_restarted() -> None:
    """That may be on another machine: the heartbeats of all servers went to the machine before."""
    w = world(2)
    after = World(
        durability={"mode": "replica"}, servers=2, left=to_state(w.job), now=w.now + 1000.0
    )
    after.silent = {0, 1}
    after.tick(after.config.cluster.heartbeat_timeout_s)
    after.tick(RETURN_WITHIN_S - 1.0 - after.config.cluster.heartbeat_timeout_s)
    assert after.job.lifecycle.rollbacks == 0
    assert not [text for text in after.texts() if "declared lost" in text]
    after.silent = {1}
    after.tick(1.0)
    assert "ps-1 declared lost" in "\n".join(after.texts())
    assert after.job.lifecycle.rollbacks == 0


class TestAServerThatGoesOnAlone:
    def note(self, w: World, number: int, has_copy: bool) -> int:
        server = next(iter(w.job.fleet.servers))
        request = pb.ServerHeartbeatRequest(
            shard=0, incarnation=server.incarnation, note=number, has_copy=has_copy
        )
        return w.servers.heartbeat(request, w.now).noted

    def test_takes_the_model_with_it_also_under_the_next_master(self):
        w = world(2)
        assert self.note(w, 2, False) == 2
        assert expendable(w) == [1], "its shard has a copy"
        for each in (w, World(durability={"mode": "replica"}, servers=2, left=to_state(w.job))):
            each.exit("ps", 0, signal=9)
            assert each.job.lifecycle.rollbacks == 1
            assert "before another server had a new copy of shard 0" in "\n".join(each.texts())

    def test_is_as_the_others_when_it_has_a_copy_again(self):
        w = world(2)
        self.note(w, 2, False)
        assert self.note(w, 3, True) == 3
        w.tick(1)
        assert expendable(w) == [0, 1]
        w.exit("ps", 0, signal=9)
        assert w.job.lifecycle.rollbacks == 0

    def test_is_alone_though_an_earlier_note_comes_late(self):
        w = world(2)
        assert self.note(w, 3, False) == 3
        assert self.note(w, 2, True) == 0
        assert self.note(w, 3, False) == 3, "the answer may have been lost"
        w.exit("ps", 0, signal=9)
        assert w.job.lifecycle.rollbacks == 1

    def test_has_a_successor_whose_notes_count_from_the_start(self):
        w = world(2)
        self.note(w, 7, True)
        w.exit("ps", 0, signal=9)
        w.tick()
        w.up()
        server = w.job.fleet.servers.of(0, 3)
        assert server is not None
        request = pb.ServerHeartbeatRequest(shard=0, incarnation=3, note=2, has_copy=False)
        assert w.servers.heartbeat(request, w.now).noted == 2
        w.exit("ps", server.id, signal=9)
        assert w.job.lifecycle.rollbacks == 1
