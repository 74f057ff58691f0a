"""Servers that keep copies for each other, in simulated time."""

from __future__ import annotations

from master.state.status import describe
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
