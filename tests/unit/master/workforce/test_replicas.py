"""Servers that keep copies for each other."""

from __future__ import annotations

import pytest

from master.state.calls import server_calls
from master.state.lifecycle import RETURN_WITHIN_S
from tests.unit.master.world import TIMEOUT_S, World, running
from torch_edl.wire import master_pb2 as pb


def world(servers: int = 3) -> World:
    """Return a job whose servers have copies of their shards at their peers."""
    w = running(durability={"mode": "replica"}, servers=servers)
    w.tick(1)
    return w


def expendable(w: World) -> list[int]:
    return [p.id for p in w.status().processes if p.state != "exited" and p.expendable]


def test_which_servers_may_be_lost() -> None:
    w = World(durability={"mode": "replica"}, servers=4)
    w.tick()
    assert expendable(w) == [0, 1, 2, 3], "nothing was acknowledged"
    w.all_up()
    w.tick(1)
    assert expendable(w) == [0, 1, 2, 3], "all have copies"
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


def leaves(w: World, id: int) -> bool:
    """Return whether a server that got SIGTERM may end."""
    (process,) = (p for p in w.fleet.servers if p.id == id)
    return not w.server_beat(process, leaving=True).stay


class TestServersThatAreAskedToLeave:
    @pytest.mark.parametrize("servers", [2, 3])
    def test_leave_one_after_the_other_if_they_need_each_other(self, servers):
        w = world(servers)
        assert [leaves(w, id) for id in range(servers)] == [True] + [False] * (servers - 1)
        assert leaves(w, 0), "a second time: it is not its own neighbour"
        w.exit("ps", 0, code=143)
        w.tick()
        assert not leaves(w, 1), "the successor fetches its copy from here"
        w.up()
        w.tick(1)
        assert leaves(w, 1)
        assert w.job.lifecycle.rollbacks == 0
        assert w.said("ps-1 was asked to leave") == 1

    def test_leave_together_if_they_do_not(self):
        w = world(4)
        assert [leaves(w, id) for id in (0, 2, 1, 3)] == [True, True, False, False]

    def test_leave_at_the_end_of_the_job(self):
        w = world(2)
        w.job.stop("enough", w.now, at_once=True)
        assert leaves(w, 0)
        assert leaves(w, 1)


def test_a_restarted_master_looks_for_copies_that_were_noted() -> None:
    w = World(durability={"mode": "replica"}, servers=2)
    w.up()
    first, second = w.fleet.servers
    answer = w.server_beat(first, keeper=second.incarnation, note=1)
    assert answer.noted == 1, "which is answered once that is kept"
    found = w.restart().fleet.servers
    assert (found.has_copy(0), found.has_copy(1)) == (True, False)


def test_servers_have_time_to_find_a_master_that_was_restarted() -> None:
    """That may be on another machine: the heartbeats of all servers went to the machine before."""
    w = world(2)
    after = w.restart(now=w.now + 1000.0)
    after.silent = {0, 1}
    after.tick(TIMEOUT_S)
    after.tick(RETURN_WITHIN_S - 1.0 - TIMEOUT_S)
    assert after.job.lifecycle.rollbacks == 0
    assert not after.said("declared lost")
    after.silent = {1}
    after.tick(1.0)
    assert after.said("ps-1 declared lost")
    assert after.job.lifecycle.rollbacks == 0


def test_a_server_that_does_not_find_a_master_at_the_same_address_is_lost() -> None:
    after = world(2).restart(now=1000.0, same_address=True)
    after.silent = {1}
    after.tick(TIMEOUT_S - 1.0)
    assert not after.said("declared lost")
    after.tick(1.0)
    assert after.said("ps-1 declared lost")


def test_a_server_that_found_the_restarted_master_has_no_more_time_than_others() -> None:
    after = world(2).restart(now=1000.0)
    after.tick(1.0)
    after.silent = {1}
    after.tick(TIMEOUT_S - 1.0)
    assert not after.said("declared lost")
    after.tick(1.0)
    assert after.said("ps-1 declared lost")


class TestAServerThatGoesOnAlone:
    def note(self, w: World, number: int, has_copy: bool, incarnation: int = 1) -> int:
        request = pb.ServerHeartbeatRequest(
            shard=0, incarnation=incarnation, note=number, has_copy=has_copy
        )
        return w.call(server_calls.heartbeat, request).noted

    def test_takes_the_model_with_it_also_under_the_next_master(self):
        w = world(2)
        assert self.note(w, 2, False) == 2
        assert expendable(w) == [1], "its shard has a copy"
        for each in (w.restart(), w):
            each.exit("ps", 0, signal=9)
            assert each.job.lifecycle.rollbacks == 1
            assert each.said("before another server had a new copy of shard 0")

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
        assert [self.note(w, 3, False), self.note(w, 2, True)] == [3, 0]
        assert self.note(w, 3, False) == 3, "the answer may have been lost"
        w.exit("ps", 0, signal=9)
        assert w.job.lifecycle.rollbacks == 1

    def test_has_a_successor_whose_notes_count_from_the_start(self):
        w = world(2)
        self.note(w, 7, True)
        w.exit("ps", 0, signal=9)
        w.tick()
        w.up()
        assert self.note(w, 2, False, incarnation=3) == 2
        w.exit("ps", w.fleet.servers.of(0, 3).id, signal=9)
        assert w.job.lifecycle.rollbacks == 1
