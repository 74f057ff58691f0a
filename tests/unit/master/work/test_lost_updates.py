"""A machine lost power, and a server has less than it had acknowledged."""

from __future__ import annotations

import json

import pytest

from master.state.job.restart import after_failure, to_state
from master.state.work.lost_updates import in_both
from tests.unit.master.model_file_world import World
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

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
    assert in_both(SPACE, progress, marks) == (kept, lacks)


def register(w: World, marks: Watermarks) -> None:
    """All servers that start have these records."""
    w.tick()
    for process in w.job.fleet.alive("ps"):
        if process.state == "starting":
            request = pb.RegisterServerRequest(
                shard=process.shard,
                incarnation=process.incarnation,
                address=f"s{process.id}",
                watermarks=marks.to_proto(),
            )
            w.servers.register(request, w.now)


def world() -> World:
    w = World(workers=2, durability={"mode": "journal"})
    w.all_up()
    w.work(tasks=3)
    return w


def test_the_records_are_trained_again_where_no_worker_lives() -> None:
    before = world()
    done, _ = before.job.done()
    left = json.loads(json.dumps(to_state(before.job)))
    w = World(workers=2, durability={"mode": "journal"}, left=left)
    for role in ("ps", "worker"):
        for id in range(2):
            w.exit(role, id, signal=9)
    register(w, Watermarks(1, {1: 4, 2: 2}))
    assert w.job.done()[0] == done - 2
    assert "lacks 2 records that it had: its machine lost power; they are trained" in w.texts()[-2]
    assert (w.job.lifecycle.rollbacks, w.job.tasks.retired_before) == (1, 2)
    w.all_up()
    w.work()
    assert w.job.tasks.trained


def test_workers_that_live_may_say_that_the_tasks_are_over() -> None:
    w = world()
    assert w.report_model(0) is not None, "this worker leases"
    done, _ = w.job.done()
    w.exit("ps", 1, signal=9)
    register(w, Watermarks(1, {1: 4, 2: 2}))
    assert w.job.done()[0] == done
    assert "shard 1 goes on without them; --fsync always loses none" in w.texts("error")[-1]


def test_a_job_that_failed_is_continued_without_its_failures() -> None:
    w = world()
    (lease,) = w.lease(0).leases
    w.fail(0, lease, "no such column", fatal=True)
    state = json.loads(json.dumps(to_state(w.job)))
    assert state["lifecycle"]["outcome"]["state"] == "failed"
    goes_on = World(workers=2, durability={"mode": "journal"}, left=after_failure(state))
    assert goes_on.outcome is None
    assert goes_on.job.done() == w.job.done()
    assert to_state(goes_on.job)["tasks"]["main"]["failures"] == []
    finished = {**state, "lifecycle": {**state["lifecycle"], "outcome": {"state": "finished"}}}
    assert after_failure(finished) == finished
