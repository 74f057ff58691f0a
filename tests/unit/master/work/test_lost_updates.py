"""A machine lost power, and a server has less than it had acknowledged."""

from __future__ import annotations

import json

import pytest

from master.state.work.progress import without_lost
from tests.unit.master.world import World, running
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.tables.watermarks import Watermarks

SPACE = TaskSpace([Shard("a", 40)], 4)


@pytest.mark.parametrize(
    ("marks", "kept", "lacks"),
    [
        (Watermarks(2, {2: 4, 3: 2, 5: 4}), Watermarks(2, {2: 4, 3: 2, 4: 0, 5: 4}), 0),
        (Watermarks(9), Watermarks(2, {2: 4, 3: 2, 4: 0, 5: 4}), 0),
        (Watermarks(1, {1: 4, 2: 4, 3: 4, 5: 4}), Watermarks(1, {1: 4, 2: 4, 3: 2, 4: 0, 5: 4}), 0),
        (Watermarks(1, {1: 3, 2: 4, 3: 1}), Watermarks(1, {1: 3, 2: 4, 3: 1, 4: 0, 5: 0}), 6),
        (Watermarks(), Watermarks(0, dict.fromkeys(range(6), 0)), 18),
    ],
)
def test_what_is_done_and_in_a_server(marks: Watermarks, kept: Watermarks, lacks: int) -> None:
    progress = Watermarks(2, {2: 4, 3: 2, 5: 4})
    assert without_lost(SPACE, progress, marks) == (kept, lacks)


def world() -> World:
    w = running(workers=2, durability={"mode": "journal"})
    w.work(tasks=3)
    return w


def register(w: World, marks: Watermarks) -> None:
    """Let all servers that start have these records."""
    w.tick()
    for process in w.fleet.alive("ps"):
        if process.state == "starting":
            w.server_register(
                process.shard, process.incarnation, process.id, watermarks=marks.to_proto()
            )


def test_the_records_are_trained_again_where_no_worker_lives() -> None:
    before = world()
    done, _ = before.job.done()
    w = before.restart()
    for role in ("ps", "worker"):
        for id in range(2):
            w.exit(role, id, signal=9)
    register(w, Watermarks(1, {1: 4, 2: 2}))
    assert w.job.done()[0] == done - 2
    assert w.said("lacks 2 records that it had", "warning")
    assert (w.job.lifecycle.rollbacks, w.job.tasks.retired_before) == (1, 2)
    w.all_up()
    w.work()
    assert w.job.tasks.trained


def test_workers_that_live_may_say_that_the_tasks_are_over() -> None:
    w = world()
    assert w.start(0) is not None, "this worker leases"
    done, _ = w.job.done()
    w.exit("ps", 1, signal=9)
    register(w, Watermarks(1, {1: 4, 2: 2}))
    assert w.job.done()[0] == done
    assert w.said("--fsync always", "error")
    w.job.tasks.ledger.close_line(0.0, "", 0, 0)
    line = json.loads(w.job.tasks.ledger.to_state()["lines"][-1])
    assert line["entries"][-1] == ["lost", 1, 2], "an audit finds it"
