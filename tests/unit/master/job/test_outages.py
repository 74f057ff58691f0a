"""What losses, moves and restarts cost: the seconds without a step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.master.world import World, running
from torch_edl.wire import master_pb2 as pb


def train(w: World, worker: int, steps: int) -> None:
    """Send a heartbeat of a worker, a second after the last one."""
    w.tick(1.0)
    for other in w.alive - {worker}:
        w.beat(other, phase="waiting")
    w.beat(worker, phase="training", steps=steps, records=2 * steps)


def beaten(**fields: Any) -> World:
    """Return a job whose worker 0 has made a step, of which its heartbeat told at the time 1."""
    w = running(**{"workers": 2, "durability": {"mode": "journal"}, **fields})
    w.lease(0, want=8)
    train(w, 0, 1)
    return w


def outages(w: World) -> list[float | None]:
    found = w.status().outages
    return [each.stalled_s if each.HasField("stalled_s") else None for each in found]


def kill_server(w: World) -> None:
    w.exit("ps", next(iter(w.fleet.servers)).id, signal=9)
    w.tick(0.0)


def test_steps_that_are_older_than_the_death_end_no_outage() -> None:
    """The first heartbeat after the death has steps from before it, then nothing for 38 s."""
    w = beaten()
    kill_server(w)
    w.exit("worker", 1, signal=9)
    train(w, 0, 2)
    assert outages(w) == [None, None]
    for _ in range(38):
        train(w, 0, 2)
    assert outages(w) == [None, None]
    train(w, 0, 3)
    assert outages(w) == [40.0, 40.0]
    status = w.status()
    assert status.stalled_s == 40.0, "the server and the worker were lost at the same time"
    assert [(each.role, each.losses) for each in status.losses] == [("worker", 1), ("ps", 1)]
    lost = [e for e in status.events if e.kind in ("server_lost", "worker_lost")]
    assert [each.event for each in status.outages] == [e.sequence for e in lost]
    assert {(each.time, each.since) for each in status.outages} == {(e.time, e.time) for e in lost}


def test_steps_that_go_on_end_an_outage_with_the_first_heartbeat() -> None:
    w = beaten()
    w.tick(0.5)
    w.exit("worker", 1, signal=9)
    for step in range(2, 5):
        train(w, 0, step)
    assert outages(w) == [1.0]
    assert w.status().stalled_s == 1.0


def test_outages_at_the_same_time_count_once() -> None:
    w = beaten()
    kill_server(w)
    for _ in range(10):
        train(w, 0, 1)
    kill_server(w)
    for _ in range(5):
        train(w, 0, 1)
    train(w, 0, 2)
    assert outages(w) == [16.0, 6.0]
    assert w.status().stalled_s == 16.0
    kill_server(w)
    train(w, 0, 2)
    train(w, 0, 3)
    assert outages(w) == [16.0, 6.0, 2.0]
    assert w.status().stalled_s == 18.0


def test_the_silence_of_a_lost_process_counts_from_the_last_step() -> None:
    """A server hangs; it is declared lost ten seconds later, and another worker went on for two."""
    w = beaten()
    w.silent.add(next(iter(w.fleet.servers)).id)
    train(w, 0, 2)
    train(w, 0, 3)
    while not w.said("declared lost: no heartbeat for 10 s"):
        train(w, 0, 3)
    began = w.now
    train(w, 0, 3)
    train(w, 0, 4)
    (stalled_s,) = outages(w)
    assert stalled_s == w.now - 3.0 > w.now - began


def test_moves_and_preemptions_are_outages_too() -> None:
    w = beaten()
    lost = dict(w.job.lifecycle.outages.losses)
    w.beat(0, phase="training", steps=1, leaving=True, notice="spot")
    w.exit("worker", 0, code=0)
    w.lease(1)
    for step in (1, 2):
        train(w, 1, step)
    assert outages(w) == [1.0]
    assert w.job.lifecycle.outages.losses == lost


def test_a_job_that_only_evaluates() -> None:
    w = running(kind="predict", load="/m", workers=2)
    w.exit("worker", 1, signal=9)
    w.tick(1.0)
    w.do(0, w.task())
    w.tick(1.0)
    w.do(0, w.task())
    assert outages(w) == [1.0]


@pytest.mark.parametrize("wall_s", [0.0, 1e6])
def test_a_restarted_master_continues_an_outage(wall_s: float) -> None:
    w = beaten()
    kill_server(w)
    train(w, 0, 1)
    kill_server(w)
    train(w, 0, 2)
    train(w, 0, 3)
    assert outages(w) == [2.0, 1.0]
    kill_server(w)
    lost = w.job.lifecycle.outages.losses
    again = w.restart(w.state(), now=w.now + 7.0)
    assert again.job.lifecycle.outages.losses == lost
    train(again, 0, 3)
    train(again, 0, 4)
    assert outages(again) == [2.0, 1.0, 9.0, 2.0]
    assert again.status().stalled_s == 11.0


def returns(w: World, *stood: tuple[float, float] | None) -> World:
    """Restart the master, 30 s after the last step that it knows of. Each worker then tells of the
    longest time without a step, from the first to the second number of seconds ago."""
    again = w.restart(w.state(), now=w.now + 30.0)
    again.tick(1.0)
    for worker, span in enumerate(stood):
        told = (
            {} if span is None else {"standstill": pb.Standstill(began_s=span[0], ended_s=span[1])}
        )
        again.beat(worker, phase="training", steps=9, records=18, **told)
    return again


def test_a_standstill_while_the_master_was_away_counts_from_the_last_step_of_any_worker() -> None:
    again = returns(beaten(), (25.0, 0.0), (21.0, 0.0))
    train(again, 0, 9)
    assert outages(again) == [None]
    train(again, 0, 10)
    assert outages(again) == [23.0]
    assert again.status().stalled_s == 23.0


def test_a_standstill_that_ended_before_the_first_heartbeat_to_the_next_master() -> None:
    again = returns(beaten(), (25.0, 0.5), None)
    train(again, 0, 10)
    assert outages(again) == [25.0]


@pytest.mark.parametrize("stood", [(0.1, 0.0), (20.0, 15.0)], ids=["none", "over"])
def test_a_job_that_trained_when_its_master_came_back_stood_still_for_no_longer(
    stood: tuple[float, float],
) -> None:
    again = returns(beaten(), (25.0, 0.0), stood)
    train(again, 1, 10)
    assert outages(again) == [1.0]


def test_only_the_absence_of_the_master_is_asked_for() -> None:
    """Of a death that the master saw, it knows the time."""
    w = beaten()
    kill_server(w)
    w.beat(0, phase="training", steps=1, standstill=pb.Standstill(began_s=40.0))
    train(w, 0, 1)
    train(w, 0, 2)
    assert outages(w) == [2.0]


def waits(w: World) -> dict[int, float]:
    return {p.id: p.waits_s for p in w.status().processes if p.role == "worker"}


def test_a_worker_waits_if_a_step_takes_longer_than_usual() -> None:
    w = beaten()
    for _ in range(3):
        train(w, 0, 1)
    assert waits(w)[0] == 0.0
    train(w, 0, 1)
    assert waits(w)[0] == 4.0
    train(w, 0, 2)
    assert waits(w)[0] == 0.0
    for step in range(2, 6):  # of 6 s each, which is now the usual time
        for _ in range(6):
            train(w, 0, step)
    for _ in range(5):
        train(w, 0, 5)
    assert waits(w)[0] == 0.0
    w.beat(0, phase="evaluating", steps=5)
    w.tick(5.0)
    assert waits(w)[0] == 0.0, "no step is expected"


def test_a_server_that_replaced_another_has_its_own_name() -> None:
    w = beaten()
    kill_server(w)
    words = [spec.args for spec in w.started if spec.role == "ps"]
    assert [(each[each.index("--shard") + 1], each[each.index("--id") + 1]) for each in words] == [
        ("0", "0"),
        ("1", "1"),
        ("0", "2"),
    ]
