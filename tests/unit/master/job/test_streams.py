"""Tasks of streams are leased when the store has them, and mean the same to the next master."""

from __future__ import annotations

from typing import Any

from master.state.actions import KeepPlan, PlanKept, StreamGrown
from tests.unit.master.world import World, running

STREAM: dict[str, Any] = {"epochs": 0, "train": ("kafka://h/t",), "dir": "/c", "every": 1}


def grow(w: World, end: int, first: int = 0) -> None:
    w.apply(StreamGrown({"p": (first, end)}))
    w.tick()


def plans(w: World) -> list[KeepPlan]:
    """Take the plans that are to be stored."""
    found = [action for action in w.actions if isinstance(action, KeepPlan)]
    w.actions = [action for action in w.actions if not isinstance(action, KeepPlan)]
    return found


def keep(w: World) -> None:
    for action in plans(w):
        w.apply(PlanKept(action.life, action.end))


def spans(w: World, worker: int = 0) -> list[tuple[int, int, int]]:
    answer = w.lease(worker)
    leases = answer.leases if answer is not None else ()
    return [(lease.task_id, lease.start, lease.end) for lease in leases]


def eight() -> World:
    """Return a job of two workers whose stream has eight records, in two tasks."""
    w = running(workers=2, **STREAM)
    grow(w, 8)
    keep(w)
    return w


def test_no_task_is_leased_before_it_is_kept() -> None:
    early = World(**STREAM)
    grow(early, 9)
    assert plans(early) == []
    w = running(workers=2, **STREAM)
    grow(w, 8)
    assert spans(w) == []
    assert plans(w) == [KeepPlan(0, 2)]
    w.tick()
    assert (plans(w), spans(w)) == ([], []), "it is under way"
    w.apply(PlanKept(0, 2))
    assert [spans(w), spans(w, 1)] == [[(0, 0, 4)], [(1, 4, 8)]]
    assert not w.job.tasks.trained


def test_a_master_that_takes_over_means_the_same_tasks() -> None:
    w = running(workers=2, **STREAM)
    grow(w, 10)
    keep(w)
    w.do(0, w.task())
    held = w.task()
    grow(w, 11)
    grow(w, 11)  # nobody has anything to lease: what is there is cut
    again = w.restart()
    assert spans(again, 1) == [(2, 8, 11)], "tasks that were not leased yet are in the store, too"
    assert again.complete(0, held)
    grow(again, 15)
    keep(again)
    assert spans(again) == [(3, 11, 15)]


def test_tasks_that_are_done_are_forgotten_but_not_while_a_checkpoint_is_taken() -> None:
    w = eight()
    w.do(0, w.task())
    w.tick()
    grow(w, 12)
    space = w.job.tasks.main.space
    assert space.plan.first == 0  # which the checkpoint may begin with
    w.save()
    grow(w, 12)
    assert space.plan.first == 1


def test_a_rollback_to_the_beginning_reads_it_again() -> None:
    w = eight()
    w.do(0, w.task())
    w.exit("ps", 0, signal=9)
    w.all_up()
    grow(w, 8)
    assert spans(w) == []
    keep(w)
    assert spans(w) == [(0, 0, 4)]


def test_records_that_are_gone_end_the_job() -> None:
    w = eight()
    grow(w, 30, first=20)
    assert w.outcome.usage_error
    assert "8 to 19" in w.outcome.error
