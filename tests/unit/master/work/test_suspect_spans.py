"""Records that kill each member of a ring are found; those of members that are killed are not."""

from __future__ import annotations

from typing import Any

import pytest

from master.state.calls import worker_calls
from tests.unit.master.script_jobs import ring_of_two
from tests.unit.master.world import World, running
from torch_edl.wire import master_pb2 as pb

CRASH: dict[str, Any] = {"signal": 11}
KILL: dict[str, Any] = {"signal": 9}
OOM: dict[str, Any] = {"signal": 9, "own_fault": True, "why": "memory was short"}


def begin(w: World, worker: int, first: int, last: int) -> bool:
    """Report a span; an empty one ends it. Returns whether the member reports further spans."""
    span = pb.TaskStep(first=first, last=last, name=f"records {first} to {last - 1} of a")
    if first >= last:
        span = pb.TaskStep()
    request = pb.ReportSpanRequest(worker_id=worker, ring=w.job.ring.number, span=span)
    return not w.call(worker_calls.report_span, request).enough


def trained(w: World) -> None:
    """The limit of deaths before anything is trained is another one."""
    for worker in w.alive:
        w.job.fleet.trained(worker)


def ring(**options: Any) -> World:
    """Return a model file that trains in a ring of two."""
    w = running(strategy="allreduce", workers=2, **options)
    w.meet()
    trained(w)
    return w


def next_ring(w: World) -> pb.Ring:
    """Replace the dead, and form the next ring of the living."""
    w.tick(31)
    w.all_up()
    trained(w)
    return w.meet(step=1)


def die(w: World, how: dict[str, Any], at: tuple[int, int] | None, late_s: float = 0.0) -> int:
    """Let a member of the newest ring die in a span. Returns its id."""
    worker = min(w.rings)
    if at is not None:
        assert begin(w, worker, *at)
        w.now += late_s
    w.exit("worker", worker, **how)
    return worker


@pytest.mark.parametrize("how", [CRASH, KILL, OOM], ids=["crash", "kill", "oom"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_records_that_kill_each_member_fail_the_job(
    how: dict[str, Any], restarts: bool
) -> None:
    w = ring()
    assert not w.job.ring.current.report_spans
    die(w, how, None)
    for at in ((4, 8), (6, 8), (5, 9)):  # the part of a member depends on their number
        assert w.outcome is None
        w = w.restart() if restarts else w
        assert next_ring(w).report_spans
        worker = die(w, how, at)
    assert w.outcome.state == "failed"
    assert w.outcome.reason.startswith("records 6 to 7 of a: 3 workers in a row died")
    assert f"worker-{worker} ended with " in w.outcome.reason
    assert "--skip-damaged leaves them out" in w.outcome.reason


@pytest.mark.parametrize(
    ("how", "spans", "late_s"),
    [
        (CRASH, [None], 0),  # between two spans
        (CRASH, [(0, 4), (4, 8)], 0),  # no record in common
        (KILL, [(0, 4)], 1.5),  # members are killed at any time
        ({"signal": 15}, [(0, 4)], 0),
        ({"code": 143, "own_fault": False, "why": "preempted"}, [(0, 4)], 0),
    ],
)
def test_other_deaths_do_not_count(how: dict[str, Any], spans: Any, late_s: float) -> None:
    w = ring()
    die(w, CRASH, None)
    for number in range(4):
        next_ring(w)
        die(w, how, spans[number % len(spans)], late_s)
        assert w.outcome is None, w.outcome


def test_members_that_die_together_do_not_blame_one_span() -> None:
    w = ring()
    die(w, CRASH, None)
    for _ in range(2):
        next_ring(w)
        for worker, at in zip(sorted(w.rings), ((0, 4), (4, 8)), strict=True):
            begin(w, worker, *at)
        for worker in sorted(w.rings):
            w.exit("worker", worker, **KILL)
    assert w.outcome is None


def test_a_span_that_was_trained_is_suspect_no_more() -> None:
    w = ring()
    die(w, CRASH, None)
    for _ in range(4):
        next_ring(w)
        die(w, CRASH, (4, 8))
        next_ring(w)
        w.at(8)
        assert w.outcome is None


def test_members_report_until_the_place_of_the_death_is_long_past() -> None:
    w = ring()
    w.at(10)
    die(w, CRASH, None)
    next_ring(w)
    for _ in range(12):
        w.tick(5)
        w.at(10)
    assert begin(w, min(w.rings), 10, 12), "that place was never left"
    w.at(12)
    w.now += 9
    w.at(14)
    assert begin(w, min(w.rings), 14, 16), "heartbeats are late"
    w.now += 2
    w.at(16)
    assert not begin(w, min(w.rings), 16, 18)
    w.exit("worker", min(w.rings), code=143, own_fault=False, why="preempted")
    assert not next_ring(w).report_spans, "a preemption has no place"


def test_records_that_kill_each_member_are_left_out_if_the_user_wants() -> None:
    w = ring(skip_damaged=True)
    die(w, CRASH, None)
    for _ in range(3):
        assert not next_ring(w).skip
        die(w, CRASH, (4, 6))
    assert w.outcome is None
    assert w.said("records 4 to 5 of a: 3 workers in a row died", "warning") == 1
    w = w.restart()
    assert [(each.first, each.last) for each in next_ring(w).skip] == [(4, 6)]


def test_a_late_report_of_an_earlier_ring_counts_for_nothing() -> None:
    w = ring()
    die(w, CRASH, None)
    next_ring(w)
    worker = max(w.rings)
    begin(w, worker, 4, 8)
    span = pb.TaskStep(first=4, last=8, name="records 4 to 7 of a")
    for _ in range(4):
        before = w.job.ring.number
        die(w, {"signal": 15}, None)
        next_ring(w)
        late = pb.ReportSpanRequest(worker_id=worker, ring=before, span=span)
        w.call(worker_calls.report_span, late)
        worker = max(w.rings)
        w.exit("worker", min(w.rings), **CRASH)
        next_ring(w)
    assert w.outcome is None


def test_the_records_of_a_script_are_named_and_cannot_be_left_out() -> None:
    w = ring_of_two(skip_damaged=True, max_restarts=9)
    worker, number = 1, 1
    for deaths in range(4):
        if deaths:
            w.tick()
            new = w.enter(w.started[-1].id).worker_id
            w.join(new)
            worker, number = new, w.ring(0, new, ring=number, step=1).number
            begin(w, worker, 4, 8)
        assert w.outcome is None
        w.exit("worker", worker, signal=9 if deaths else 11, error="train.py: rank 1 ended")
    assert w.outcome.reason.startswith("records 4 to 7 of a: 3 workers in a row died")
    assert "--skip-damaged" not in w.outcome.reason
