"""Workers that share pods: which pod each is in, in simulated time, no API."""

from __future__ import annotations

from typing import Any

from master.state.actions import Failure, Start
from master.state.workforce.fleet import Fleet
from master.state.workforce.server_command import ServerCommand
from torch_edl.processes.spec import ProcessExit, ProcessRuns


def fleet(workers: int, *, per_pod: int = 2) -> Fleet:
    return Fleet(
        ServerCommand(job="job"), workers=workers, servers=1, asks=True, workers_per_pod=per_pod
    )


def started(fleet: Fleet, now: float) -> list[tuple[int, int]]:
    """(number, pod) of each worker that is started."""
    return [(a.spec.id, a.spec.pod) for a in fleet.plan(now) if isinstance(a, Start)]


def run(fleet: Fleet, now: float) -> None:
    """All that wait run."""
    for process in fleet.alive("worker"):
        process.run(ProcessRuns(role="worker", id=process.id, node="n1"), now)
        fleet.registered(process.id)


def lose(fleet: Fleet, id: int, now: float, **how: Any) -> Any:
    return fleet.exited(ProcessExit(role="worker", id=id, **how), now, log="pod/x")


def test_the_last_pod_has_what_is_left() -> None:
    f = fleet(5)
    assert started(f, 0.0) == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)]
    assert started(fleet(3, per_pod=1), 0.0) == [(0, -1), (1, -1), (2, -1)]


def test_one_that_is_lost_is_replaced_in_its_pod() -> None:
    f = fleet(4)
    started(f, 0.0)
    run(f, 1.0)
    lose(f, 1, 2.0, signal=9)
    assert started(f, 2.0) == [(4, 0)]
    lose(f, 0, 3.0, code=143)
    assert started(f, 3.0) == [(5, 0)], "the pod has the number of a worker that is gone"


def test_a_pod_that_is_lost_is_replaced_by_another_one() -> None:
    f = fleet(4)
    started(f, 0.0)
    run(f, 1.0)
    for id in (2, 3):
        lose(f, id, 2.0, why="preempted", own_fault=False)
    assert started(f, 2.0) == [(4, 4), (5, 4)]


def test_a_pod_that_crashes_is_one_crash_and_the_last_one_fails_the_job() -> None:
    f = fleet(2)
    found: Any = None
    for round in range(5):
        now = 100.0 * round
        first = 2 * round
        assert started(f, now) == [(first, first), (first + 1, first)]
        run(f, now)
        assert not isinstance(found, Failure)
        # As the launcher tells it: the first one has the cause.
        found = lose(f, first, now, code=1, why="oh no")
        lose(f, first + 1, now, why="its pod ended", own_fault=False)
    assert isinstance(found, Failure)


def test_fewer_workers_leave_in_whole_pods_and_come_back() -> None:
    f = fleet(6)
    started(f, 0.0)
    run(f, 1.0)
    lose(f, 0, 2.0, signal=9)
    assert started(f, 2.0) == [(6, 0)]
    run(f, 3.0)
    f.workers_wanted = 3
    f.plan(4.0)
    assert f.draining() == [3, 4, 5]
    for id in (3, 4, 5):
        lose(f, id, 5.0, code=0)
    f.workers_wanted = 5
    assert started(f, 6.0) == [(7, 2), (8, 8)]


def test_a_pod_that_leaves_takes_nobody_in() -> None:
    f = fleet(2)
    started(f, 0.0)
    run(f, 1.0)
    f.workers_wanted = 0
    f.plan(2.0)
    lose(f, 1, 3.0, code=0)
    f.workers_wanted = 2
    assert started(f, 4.0) == [(2, 2)]


def test_the_next_master_knows_who_is_where() -> None:
    before = fleet(4)
    started(before, 0.0)
    run(before, 1.0)
    after = fleet(4)
    after.from_state(before.to_state(), 0.0)
    lose(after, 3, 1.0, signal=9)
    assert started(after, 2.0) == [(4, 2)]
