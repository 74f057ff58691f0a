"""The workers of a script in pods."""

from __future__ import annotations

import pytest

from master.state.workforce.deaths import CRASH_LIMIT
from tests.unit.master.script_jobs import script
from tests.unit.master.world import World
from torch_edl.config import Launch
from torch_edl.processes.launcher import ProcessRuns

LAUNCH = Launch(max_nodes=100, per_node=2, grace_s=20.0)


def job(workers: int = 4) -> World:
    """Return the job of a script in pods of two workers each."""
    return script(workers=workers, cluster=True, per_pod=2, launch=LAUNCH, join_timeout_s=1e9)


def pods(w: World) -> list[tuple[str, int]]:
    """Return pod and slot of each worker that was started."""
    assert {(s.role, s.module, s.command is None) for s in w.started} == {("worker", "", False)}
    return [(spec.pod, spec.slot) for spec in w.started]


def run(w: World, *workers: int) -> None:
    for worker in workers:
        w.apply(ProcessRuns(role="worker", id=worker, node="n", pid=100 + worker))


def test_the_workers_of_neighbouring_slots_share_a_pod_and_so_do_their_successors() -> None:
    w = job()
    assert pods(w) == [("worker-0", 0), ("worker-0", 1), ("worker-2", 2), ("worker-2", 3)]
    run(w, 0, 1, 2, 3)
    w.enter(3)
    for worker in (2, 3):
        w.taken("worker", worker)
    assert 3 not in w.job.members  # at once, not after a timeout
    w.tick()
    assert pods(w)[4:] == [("worker-4", 2), ("worker-4", 3)]


def test_a_worker_that_is_killed_is_replaced_in_its_pod() -> None:
    w = job()
    run(w, 0, 1, 2, 3)
    w.exit("worker", 1, signal=9, pod_lives=True)
    w.tick()
    assert pods(w)[4:] == [("worker-0", 1)]
    assert not w.stopped


def test_pods_that_wait_for_room_for_hours_do_not_end_the_job() -> None:
    w = job()
    for round in range(2):
        w.waits("worker", *[p.id for p in w.fleet.alive("worker")])
        for _ in range(100):
            w.tick(100.0)
        assert w.outcome is None
        if not round:
            run(w, 0, 1)
            w.taken("worker", 0, "evicted")
            w.taken("worker", 1, "evicted")


def test_pods_that_crash_before_a_worker_runs_end_the_job() -> None:
    w = job(workers=2)
    for crash in range(CRASH_LIMIT):
        assert w.outcome is None
        w.tick(60.0)
        first, second = 2 * crash, 2 * crash + 1
        w.exit("worker", first, code=1, why="no module named torch_edl", blames_node=True)
        if w.outcome is None:
            w.taken("worker", second, "its pod ended with exit code 1")
    assert "no module named torch_edl" in w.outcome.error


def test_fewer_workers_end_whole_pods_with_their_grace() -> None:
    w = job(workers=6)
    run(w, *range(6))
    w.scale(3)
    for _ in range(3):
        w.tick()
    assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(4, 20.0), (5, 20.0)]
    assert len(w.started) == 6
    assert w.fleet.workers_wanted == 4


def test_workers_at_the_end_of_the_script_are_not_replaced() -> None:
    w = job()
    run(w, 0, 1, 2, 3)
    w.complete_script()
    assert w.outcome.state == "finished"
    w.tick()
    assert (len(w.started), w.stopped) == (4, [])


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_a_pod_that_fails_after_others_have_completed_the_script_runs_again(
    restarts: bool, taken: bool
) -> None:
    """It has reported nothing: its part of the script is open, and the job is not finished."""
    w = job()
    run(w, 0, 1, 2, 3)
    for worker in (0, 1):
        w.exit("worker", worker, code=0)
    for worker in (2, 3):
        if taken or worker == 3:
            w.taken("worker", worker)
        else:
            w.exit("worker", worker, code=1, why="its node does not answer")
    w = w.restart() if restarts else w
    w.tick(1.0)
    assert w.outcome is None
    assert [spec.slot for spec in w.started[-2:]] == [2, 3]
    run(w, 4, 5)
    w.complete_script()
    assert w.outcome.state == "finished"


def test_the_next_master_knows_the_workers_and_starts_none() -> None:
    w = job()
    run(w, 0, 1, 2, 3)
    again = w.restart()
    assert [p.name for p in again.fleet.launched()] == [f"worker-{id}" for id in range(4)]
    assert not again.started
    again.exit("worker", 0, signal=9)
    again.tick(100.0)
    assert [spec.slot for spec in again.started] == [0]
