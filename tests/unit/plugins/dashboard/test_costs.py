"""Lanes of processes, and what deaths cost."""

from __future__ import annotations

from typing import Any

from torch_edl.plugins.dashboard import incidents
from torch_edl.plugins.dashboard.events import EventBook
from torch_edl.plugins.dashboard.lanes import Lanes
from torch_edl.plugins.dashboard.samples import Sample, Samples


def _lanes(*changes: tuple[float, str, int, str, str]) -> Lanes:
    lanes = Lanes()
    for time, role, id, state, exit in changes:
        lanes.note(time, role=role, id=id, pid=100 + id, state=state, exit=exit)
    return lanes


def _samples(*points: tuple[float, int]) -> Samples:
    samples = Samples()
    for time, step in points:
        samples.add(Sample(time, step, {}))
    return samples


def _event(sequence: int, time: float, text: str, level: str = "warning") -> dict[str, Any]:
    return {"sequence": sequence, "time": time, "level": level, "text": text}


LOST = "worker-0 declared lost: no heartbeat for 30 s; its tasks were returned to the queue"
KILLED = "worker-0 ended with signal 9; its tasks were returned to the queue"


def test_a_spare_becomes_a_worker_in_one_lane() -> None:
    lanes = _lanes(
        (1, "spare", 2, "starting", ""),
        (2, "spare", 2, "running", ""),
        (2, "spare", 2, "running", ""),
        (9, "worker", 2, "running", ""),
        (12, "worker", 2, "exited", "signal 9"),
    )
    lanes.lost(11.5, "worker-2", "signal 9")
    lanes.waited(11, 2, 1.5)
    lanes.waited(11, 9, 1.5)
    states = [[1, "spare starting"], [2, "spare running"], [9, "worker running"]]
    assert lanes.shown()["rows"] == [["worker-2", states, 11.5, "signal 9", True, [[9.5, 11]]]]
    assert lanes.deaths() == 1


def test_who_was_asked_to_leave_did_not_die() -> None:
    lanes = _lanes(
        (1, "worker", 0, "running", ""),
        (9, "worker", 0, "exited", "ended with exit code 0"),
        (1, "worker", 1, "running", ""),
        (5, "worker", 1, "draining", ""),
        (9, "worker", 1, "exited", "signal 15"),
        (1, "ps", 0, "running", ""),
        (9, "ps", 0, "exited", "stopped"),
        (9, "worker", 3, "exited", "preempted by a pod of higher priority: b"),
    )
    assert lanes.deaths() == 0


def test_a_silent_process_that_the_master_stopped_died() -> None:
    """The event of its loss may be read before its end."""
    lanes = _lanes((1, "ps", 1, "running", ""))
    lanes.lost(30.0, "ps-1", "lost: no heartbeat for 30 s")
    lanes.note(30.5, role="ps", id=1, pid=101, state="stopping", exit="")
    lanes.note(31, role="ps", id=1, pid=101, state="exited", exit="stopped")
    lanes.lost(31.5, "ps-1", "signal 9")
    (row,) = lanes.shown()["rows"]
    assert row[1:5] == [[[1, "ps running"]], 30.0, "lost: no heartbeat for 30 s", True]


def test_a_restarted_master_lives_on() -> None:
    lanes = _lanes((1, "master", 0, "running", ""), (5, "master", 0, "exited", "signal 9"))
    lanes.note(6, role="master", id=0, pid=7, state="running", exit="")
    (lane,) = lanes.all.values()
    assert lane.end is None
    assert [start for start, _ in lane.segments] == [1, 6]


def test_a_thousand_workers_are_few_lanes() -> None:
    """The page lists the processes with a story; agents and workers without one are counted."""
    lanes = _lanes((0, "master", 0, "running", ""), (0, "agent", 0, "running", ""))
    for id in range(1000):
        lanes.note(1, role="worker", id=id, pid=id, state="running", exit="")
    lanes.note(50, role="worker", id=7, pid=7, state="exited", exit="signal 9")
    lanes.note(60, role="worker", id=1000, pid=9, state="running", exit="")
    shown = lanes.shown()
    assert [row[0] for row in shown["rows"]] == ["master-0", "worker-7", "worker-1000"]
    assert (shown["plain"], shown["plain_since"], shown["hidden"]) == (1000, 0, 0)
    for id in range(100):
        lanes.note(100 + id, role="worker", id=id, pid=id, state="exited", exit="exit code 1")
    assert lanes.shown()["hidden"] == 100 + 2 - 48  # with worker-1000 and the master


def test_costs_of_a_kill() -> None:
    """The event of the injected fault may be written after that of its consequence."""
    book = EventBook()
    book.add([_event(1, 100.2, KILLED), _event(2, 100.0, "chaos: worker-0 (pid 5) killed")])
    lanes = _lanes((1, "worker", 0, "running", ""), (101.5, "worker", 1, "running", ""))
    outages = [{"time": 50.0, "stalled_s": 1.0}, {"time": 100.2, "stalled_s": 38.5}]
    (cost,) = incidents.costs(book.incidents, outages, lanes)
    assert round(cost["noticed_s"], 3) == 0.2
    assert (cost["stalled_s"], cost["stands"], cost["again"]) == (38.5, False, 0)
    assert round(cost["replaced_s"], 3) == 1.3


def test_costs_of_a_silent_worker_and_of_a_rollback() -> None:
    again = "ps-0 ended with signal 9; the servers restart from /c/7, and train 1,280 records again"
    book = EventBook()
    book.add([_event(1, 100, LOST), _event(2, 100.2, KILLED), _event(3, 110, again, "error")])
    outages = [{"time": 110.0, "stalled_s": None}]
    lost, restored = incidents.costs(book.incidents, outages, Lanes())
    assert (lost["noticed_s"], lost["stalled_s"], lost["stands"]) == (30, None, False)
    assert (lost["replaced_s"], restored["kind"], restored["again"]) == (None, "restored", 1280)
    assert (restored["stalled_s"], restored["stands"]) == (None, True)


def test_many_samples_are_thinned_to_the_newest() -> None:
    samples = _samples(*((float(i), i) for i in range(4001)))
    rows = samples.rows(0)
    assert len(rows) <= 1500
    assert rows[-1][1] == 4000
    assert [row[1] for row in samples.rows(3999)] == [3999, 4000]
