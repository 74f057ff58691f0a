"""When the periodic checkpoints of servers are due."""

from __future__ import annotations

from master.state.actions import SaveServers
from tests.unit.master.world import World, running


def taken(w: World, tasks: int) -> list[SaveServers]:
    """Do a number of tasks of two steps each. Returns the checkpoints that are asked for then."""
    w.work(tasks=tasks)
    w.tick()
    found, w.actions = w.actions, []
    assert all(isinstance(action, SaveServers) for action in found)
    return found


def test_each_crossing_once_and_one_at_a_time() -> None:
    w = running(dir="/ck", every=5, epochs=2)
    assert not taken(w, 2)
    (first,) = taken(w, 1)
    assert str(first.root) == "/ck"
    assert not taken(w, 3), "the first one runs"
    saved = w.saved(first.progress, first.incarnation)
    assert saved.manifest.steps == 6
    (second,) = taken(w, 0)
    w.saved(second.progress, second.incarnation)
    assert not taken(w, 1)
    assert taken(w, 1)
    rest = running(dir="/ck", every=5, epochs=2, resume=True, resumed=saved)
    assert not taken(rest, 1)
    assert taken(rest, 1), "the next multiple after the resume"


def test_a_periodic_one_at_the_end_is_not_the_last() -> None:
    w = running(dir="/ck", every=16)
    w.work(tasks=7)
    lease = w.task()
    w.beat(steps=16, records=32)
    w.tick()
    periodic = w.effect(SaveServers)
    w.do(0, lease)
    w.saved(periodic.progress, periodic.incarnation)
    assert not w.job.checkpoints.complete
    (last,) = taken(w, 0)
    w.saved(last.progress, last.incarnation)
    assert w.job.checkpoints.complete
