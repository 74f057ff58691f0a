"""Slow workers and servers of a job are named, with their causes, and replaced."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from master.state.workforce.processes import DRAINING, ServerProcess
from tests.unit.master.world import World, running
from torch_edl.processes.pressure import Pressure
from torch_edl.wire import master_pb2 as pb

RATES = {0: 100, 1: 90, 2: 20}


def train(w: World, seconds: int, rates: dict[int, int], **fields: Any) -> None:
    """Workers train at their rates, in records a second; those that were asked send counts."""
    for _ in range(seconds):
        for worker, rate in rates.items():
            w.done[worker] += rate
            asked = w.asked.get(("worker", worker))
            told = {"machine": throttled(w.now)} if asked else {}
            answer = w.beat(worker, phase="training", records=w.done[worker], **told, **fields)
            w.asked["worker", worker] = answer.tell_machine
        w.tick(1.0)
        w.look()


def serve(w: World, seconds: int, call_s: dict[int, float]) -> None:
    """Servers answer 100 calls a second, of these durations by shard."""
    for _ in range(seconds):
        for server in servers(w):
            key, took_s = ("ps", server.id), call_s[server.shard]
            w.done["calls", server.id] += 100
            calls = w.done["calls", server.id]
            histogram = pb.Histogram(bounds=[1.0], counts=[calls, 0], sum=calls * took_s)
            told = {"machine": throttled(w.now)} if w.asked.get(key) else {}
            answer = w.server_beat(server, counts=pb.ServerCounts(pull_s=histogram), **told)
            w.asked[key] = answer.tell_machine
        pass_second(w)  # w.tick() would send heartbeats of its own


def throttled(now: float) -> dict[str, float]:
    """Return the counts of a machine that a CPU limit stops half of the time."""
    return Pressure(now, 0, 0, now / 2, 0, 0, 0)._asdict()


def pass_second(w: World) -> None:
    w.now += 1.0
    w.job.tick(w.now)
    w.look()


def servers(w: World) -> list[ServerProcess]:
    return list(w.fleet.servers)


def world(**options: Any) -> World:
    w = running(**{"workers": 3} | options)
    w.done, w.asked = Counter(), {}
    watches = w.watches()
    w.look = lambda: watches.look(w.status())
    return w


def test_a_slow_worker_is_named_once_with_the_cause() -> None:
    w = world()
    train(w, 29, RATES)
    assert not w.said("is slow")
    train(w, 60, RATES)
    assert (
        w.said("worker-2 is slow: 22% of the median rate of 3 workers for 30 s; ", "warning") == 1
    )
    assert w.said("its CPU limit stops it 50% of the time") == 1
    assert w.asked == {("worker", 0): False, ("worker", 1): False, ("worker", 2): True}
    slow = {p.id: p.slow for p in w.status().processes if p.role == "worker"}
    assert slow == {0: 0, 1: 0, 2: pytest.approx(20 / 90)}
    train(w, 60, {0: 100, 1: 90, 2: 100})
    assert w.said("worker-2 is no longer slow") == 1
    assert not any(p.slow for p in w.status().processes)
    assert not any(w.asked.values())


def test_only_the_time_of_training_counts() -> None:
    w = world()
    for _ in range(20):
        train(w, 2, {0: 100, 1: 90, 2: 100})
        for _ in range(8):  # worker 2 has no task
            train(w, 1, {0: 100, 1: 90})
            w.beat(2, phase="waiting", records=w.done[2])
    assert not w.said("is slow")


def test_members_of_a_ring_are_compared_without_their_waits() -> None:
    w = world(strategy="allreduce")
    for second in range(40):
        for worker, busy in enumerate([0.3, 0.35, 0.9]):
            w.beat(worker, records=100 * second, busy_s=busy * second)
        pass_second(w)
    assert w.said("worker-2 is slow: 39% of the median rate of 3 workers") == 1
    assert w.said("is slow") == 1


def test_a_slow_worker_is_replaced_and_the_next_one_later() -> None:
    w = world(replace_slow=True)
    train(w, 40, RATES)
    assert w.said("of the time; it is replaced") == 1
    assert w.fleet["worker", 2].state == DRAINING
    assert w.beat(2).drain
    w.exit("worker", 2, code=0)
    w.tick()
    w.all_up()
    assert sorted(p.id for p in w.fleet.alive("worker")) == [0, 1, 3]
    rates = {0: 100, 1: 90, 3: 20}
    train(w, 60, rates)
    assert w.said("worker-3 is slow") == 1
    assert w.said("it is replaced") == 1
    train(w, 10, {0: 100, 1: 100, 3: 100})


@pytest.mark.parametrize("strategy", ["ps", "allreduce"])
def test_a_machine_that_a_check_finds_slow_is_named_and_replaced(strategy: str) -> None:
    w = world(workers=4, replace_slow=True, strategy=strategy)
    for worker, (flops, copied) in enumerate([(9e9, 2e9), (40e9, 10e9), (41e9, 11e9)]):
        w.beat(worker, machine={"flops": flops, "copied": copied})
        pass_second(w)
    assert w.said("worker-0 has a slow machine: 33% of the median speed of 2 workers") == 1
    assert w.said("9 GFLOP/s and 2 GB/s for copies in memory; it is replaced") == 1
    w.beat(3, machine={"flops": 40e9, "copied": 3e9})
    pass_second(w)
    assert w.said("worker-3 has a slow machine: ") == w.said("has a slow machine") - 1 == 1
    assert w.said("it is replaced") == 1


def test_a_slow_server_is_named() -> None:
    w = world(workers=2, servers=3)
    serve(w, 40, {0: 0.001, 1: 0.001, 2: 0.002})
    assert not w.said("is slow")
    serve(w, 40, {0: 0.001, 1: 0.001, 2: 0.005})
    assert w.said("ps-2 is slow: ") == 1
    assert not w.fleet.servers.moving


def test_a_slow_server_is_replaced_only_where_its_machine_shows_a_cause() -> None:
    w = world(workers=2, servers=3, replace_slow=True)
    serve(w, 40, {0: 0.001, 1: 0.001, 2: 0.005})
    assert w.said("of the time; the model moves to other servers") == 1
    assert w.fleet.servers.moving
