"""Lanes of processes, and what deaths cost."""

from __future__ import annotations

from typing import Any

from torch_edl.events import (
    Event,
    FaultInjected,
    MasterRestarted,
    ModelRestored,
    ProcessChanged,
    ProcessLeft,
    WorkerLost,
    WorkerWaited,
)
from torch_edl.plugins.dashboard import incidents
from torch_edl.plugins.dashboard.events import EventBook
from torch_edl.plugins.dashboard.lanes import Lanes
from torch_edl.plugins.dashboard.samples import Sample, Samples
from torch_edl.wire.event_messages import to_message


def _lanes(*changes: tuple[float, str, str, str]) -> Lanes:
    lanes = Lanes()
    for time, process, state, exit in changes:
        _change(lanes, time, process, state, exit)
    return lanes


def _change(lanes: Lanes, time: float, name: str, state: str, exit: str, **more: Any) -> None:
    role, number = name.split("-")
    spare, role = role == "spare", "worker" if role == "spare" else role
    event = ProcessChanged(
        process=f"{role}-{number}",
        is_spare=spare,
        pid=100 + int(number),
        state=state,
        exit=exit,
        **more,
    )
    lanes.changed(time, event)


def _samples(*points: tuple[float, int]) -> Samples:
    samples = Samples()
    for time, step in points:
        samples.add(Sample(time, step, {}))
    return samples


def _book(*events: tuple[float, Event]) -> EventBook:
    book = EventBook()
    for number, (time, event) in enumerate(events, 1):
        for told in book.add([to_message(event, number, time)]):
            assert told == (number, time, event, event.text)
    return book


LOST = WorkerLost(process="worker-0", way="silent", cause="no heartbeat for 30 s", silent_s=30)
KILLED = WorkerLost(process="worker-0", way="ended", cause="signal 9")


def test_a_spare_becomes_a_worker_in_one_lane() -> None:
    lanes = _lanes(
        (1, "spare-2", "starting", ""),
        (2, "spare-2", "running", ""),
        (2, "spare-2", "running", ""),
        (9, "worker-2", "running", ""),
        (12, "worker-2", "exited", "signal 9"),
    )
    lanes.lost(11.5, "worker-2", "signal 9")
    for name in ("worker-2", "worker-9"):
        lanes.waited(11, WorkerWaited(process=name, seconds=1.5))
    states = [[1, "spare starting"], [2, "spare running"], [9, "worker running"]]
    assert lanes.shown()["rows"] == [["worker-2", states, 11.5, "signal 9", True, [[9.5, 11]]]]
    assert lanes.deaths() == 1


def test_who_was_asked_to_leave_did_not_die() -> None:
    lanes = _lanes(
        (1, "worker-0", "running", ""),
        (9, "worker-0", "exited", "ended with exit code 0"),
        (1, "worker-1", "running", ""),
        (5, "worker-1", "draining", ""),
        (9, "worker-1", "exited", "signal 15"),
        (1, "ps-0", "running", ""),
        (9, "ps-0", "exited", "stopped"),
        (9, "worker-3", "exited", "preempted by a pod of higher priority: b"),
    )
    assert lanes.deaths() == 0


def test_a_silent_process_that_the_master_stopped_died() -> None:
    """The event of its loss may be read before its end."""
    lanes = _lanes((1, "ps-1", "running", ""))
    lanes.lost(30.0, "ps-1", "lost: no heartbeat for 30 s")
    _change(lanes, 30.5, "ps-1", "stopping", "")
    _change(lanes, 31, "ps-1", "exited", "stopped")
    (row,) = lanes.shown()["rows"]
    assert row[1:5] == [[[1, "ps running"]], 30.0, "lost: no heartbeat for 30 s", True]


def test_a_restarted_master_lives_on() -> None:
    lanes = _lanes((1, "master-0", "running", ""), (5, "master-0", "exited", "signal 9"))
    _change(lanes, 6, "master-0", "running", "")
    (lane,) = lanes.all.values()
    assert lane.end is None
    assert [start for start, _ in lane.segments] == [1, 6]


def test_a_thousand_workers_are_few_lanes() -> None:
    """The page lists the processes with a story; workers without one are counted."""
    lanes = _lanes((0, "master-0", "running", ""), (0, "agent-0", "running", ""))
    for id in range(1000):
        _change(lanes, 1, f"worker-{id}", "running", "")
    _change(lanes, 50, "worker-7", "exited", "signal 9", died=True)
    _change(lanes, 60, "worker-1000", "running", "")
    shown = lanes.shown()
    assert [row[0] for row in shown["rows"]] == ["master-0", "worker-7", "worker-1000"]
    assert (shown["plain"], shown["plain_since"], shown["hidden"]) == (1000, 0, 0)
    for id in range(100):
        _change(lanes, 100 + id, f"worker-{id}", "exited", "exit code 1", died=True)
    assert lanes.shown()["hidden"] == 100 + 2 - 48  # with worker-1000 and the master


def test_costs_of_a_kill() -> None:
    """The event of the injected fault may be written after that of its consequence. The worker that
    takes the slot is the replacement, and not the one that happens to start next."""
    fault = FaultInjected(process="worker-0", place="pid 5", fault="killed")
    other = FaultInjected(process="worker-0", place="pid 5", fault="continued")
    book = _book((100.2, KILLED), (100.0, fault), (100.1, other))
    lanes = Lanes()
    _change(lanes, 1, "worker-0", "running", "", place="slot 0")
    _change(lanes, 100.5, "worker-1", "running", "", place="slot 1")
    _change(lanes, 101.5, "worker-2", "running", "", place="slot 0")
    outages = [{"event": 7, "stalled_s": 1.0}, {"event": 1, "stalled_s": 38.5}]
    (cost,) = incidents.costs(book.incidents, outages, lanes)
    assert round(cost["noticed_s"], 3) == 0.2
    assert (cost["stalled_s"], cost["stands"], cost["again"]) == (38.5, False, 0)
    assert (round(cost["replaced_s"], 3), cost["end"]) == (1.3, "died")


def test_costs_of_a_silent_worker_and_of_a_rollback() -> None:
    again = ModelRestored(
        why="ps-0 ended with signal 9",
        process="ps-0",
        cause="signal 9",
        who="the servers",
        checkpoint="/c/7",
        records_again=1280,
    )
    book = _book((100, LOST), (110, again))
    outages = [{"event": 2, "stalled_s": None}]
    lost, restored = incidents.costs(book.incidents, outages, Lanes())
    assert (lost["noticed_s"], lost["stalled_s"], lost["stands"]) == (30, None, False)
    kind = restored["kind"]
    assert (lost["replaced_s"], kind, restored["again"]) == (None, "model_restored", 1280)
    assert (restored["stalled_s"], restored["stands"]) == (None, True)


def test_who_was_taken_away_did_not_die() -> None:
    taken = WorkerLost(process="worker-1", way="taken", cause="preempted by a pod")
    left = ProcessLeft(
        process="worker-2", way="ended", cause="exit code 0", preempted=True, records_again=7
    )
    asked = ProcessLeft(process="worker-3", way="ended", cause="exit code 0")
    book = _book((1, taken), (2, left), (3, asked), (4, MasterRestarted(workers=2)))
    found = incidents.costs(book.incidents, [], Lanes())
    assert [(each["process"], each["end"], each["again"]) for each in found] == [
        ("worker-1", "taken", 0),
        ("worker-2", "taken", 7),
        ("master-0", "died", 0),
    ]


def test_many_samples_are_thinned_to_the_newest() -> None:
    samples = _samples(*((float(i), i) for i in range(4001)))
    rows = samples.rows(0)
    assert len(rows) <= 1500
    assert rows[-1][1] == 4000
    assert [row[1] for row in samples.rows(3999)] == [3999, 4000]
