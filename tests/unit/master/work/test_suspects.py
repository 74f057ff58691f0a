"""A task whose records kill each worker is found, and tasks of workers that are killed are not."""

from __future__ import annotations

from typing import Any

import pytest

from master.state.calls import worker_calls
from tests.unit.master.world import World, running
from torch_edl.wire import master_pb2 as pb

CRASH: dict[str, Any] = {"signal": 11}
KILL: dict[str, Any] = {"signal": 9}
OOM: dict[str, Any] = {"signal": 9, "own_fault": True, "why": "memory was short"}
LAST = {"code": 1}


def step(w: World, worker: int, lease: pb.LeaseMessage, first: int = 2, last: int = 4) -> None:
    """Report that a worker begins a step; an empty one ends it."""
    name = f"records {first} to {last - 1} of a"
    step = pb.TaskStep(first=first, last=last, name=name if last else "")
    task = pb.LeasedTask(kind=lease.kind, task_id=lease.task_id, incarnation=1)
    request = pb.BeginTaskRequest(worker_id=worker, lease_id=lease.lease_id, task=task, step=step)
    w.call(worker_calls.begin_task, request)


def next_worker(w: World) -> int:
    """Return the worker that replaces a dead one."""
    w.tick(31)
    w.all_up()
    worker = max(w.alive)
    w.job.fleet.trained(worker)  # the limit of deaths before anything is trained is another one
    return worker


def die(w: World, worker: int, **how: Any) -> World:
    w.exit("worker", worker, **how)
    return w


def meet(w: World, how: dict[str, Any], *, at: tuple[int, int] | None = (2, 4), late_s: float = 0):
    """Let a new worker lease the first task, begin a step of it, and die. Returns its lease."""
    worker = next_worker(w)
    lease = w.task(worker)
    if at is not None:
        step(w, worker, lease, *at)
        w.now += late_s
    die(w, worker, **how)
    return lease


@pytest.mark.parametrize("how", [CRASH, KILL, OOM, LAST], ids=["crash", "kill", "oom", "exit"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_records_that_kill_each_worker_fail_the_job(
    how: dict[str, Any], restarts: bool
) -> None:
    w = running()
    first = w.task()
    w = die(w, 0, **how)
    deaths = 3 if how is KILL else 2  # what killed the first worker is not known
    for number in range(deaths):
        assert w.outcome is None, number
        w = w.restart() if restarts else w
        assert meet(w, how).task_id == first.task_id
    assert w.outcome.state == "failed"
    assert w.outcome.reason.startswith("records 2 to 3 of a: 3 workers in a row died")
    assert f"worker-{deaths} ended with " in w.outcome.reason
    assert "--skip-damaged" in w.outcome.reason
    assert ("memory" in w.outcome.reason) == (how in (KILL, OOM))


@pytest.mark.parametrize(
    ("how", "steps", "late_s"),
    [
        (CRASH, [None], 0),  # between two steps: servers were lost, or the master
        (CRASH, [(0, 2), (2, 4)], 0),  # the task came beyond the point
        (KILL, [(2, 4)], 1.5),  # workers are killed at any time
        ({"signal": 15}, [(2, 4)], 0),
        ({"code": 143, "own_fault": False}, [(2, 4)], 0),  # preempted
    ],
)
def test_other_deaths_do_not_count(how: dict[str, Any], steps: Any, late_s: float) -> None:
    w = running()
    w.job.fleet.trained(0)
    w.task()
    die(w, 0, **how)
    for number in range(12):
        meet(w, how, at=steps[number % len(steps)], late_s=late_s)
        assert w.outcome is None, w.outcome


def test_the_tasks_of_a_dead_worker_are_leased_alone() -> None:
    w = running(workers=3)
    held = w.lease(0, want=6).leases
    other = w.task(1)
    die(w, 0, **KILL)
    answer = w.lease(2, want=6)
    assert [(each.task_id, each.suspect) for each in answer.leases] == [(held[0].task_id, True)]
    assert w.lease(2, want=1, ahead=4, held=[answer.leases[0].lease_id]) is None
    assert w.lease(1, want=1, held=[other.lease_id]) is None, "the worker holds another task"
    w.complete(1, other)
    assert w.task(1).task_id == held[1].task_id
    w.complete(2, answer.leases[0])
    assert w.task(2).task_id == held[2].task_id


def test_a_machine_that_dies_with_its_workers_makes_each_task_suspect_once() -> None:
    w = running(workers=3)
    held = [w.task(worker) for worker in range(3)]
    for worker in range(3):
        die(w, worker, **CRASH)
    assert w.outcome is None
    for _ in held:
        worker = next_worker(w)
        lease = w.task(worker)
        step(w, worker, lease)
        step(w, worker, lease, 0, 0)
        assert w.complete(worker, lease)
    die(w, worker, **CRASH)
    assert not w.task(next_worker(w)).suspect, "a task that is done is suspect no more"


def test_records_that_kill_each_worker_are_left_out_if_the_user_wants() -> None:
    w = running(skip_damaged=True)
    w.task()
    die(w, 0, **CRASH)
    for at in ((0, 2), (0, 2), (2, 4), (2, 4), (2, 4)):
        lease = meet(w, CRASH, at=at)
    assert [(each.first, each.last) for each in lease.skip] == [(0, 2)]
    assert w.said("records 0 to 1 of a: 3 workers", "warning") == 1
    assert w.said("left out (--skip-damaged)", "warning") == 2
    again = w.restart()
    worker = next_worker(again)
    lease = again.task(worker)
    assert [(each.first, each.last) for each in lease.skip] == [(0, 2), (2, 4)]
    assert again.complete(worker, lease)
    assert again.outcome is None


def test_a_poisoned_record_of_the_strategy_local_is_found_although_each_death_rolls_back() -> None:
    w = running(strategy="local")
    w.do(0, w.task())
    w.task()
    die(w, 0, **CRASH)
    for _ in range(2):
        worker = next_worker(w)
        w.do(worker, w.task(worker))
        step(w, worker, w.task(worker))
        die(w, worker, **CRASH)
    assert w.outcome.reason.startswith("records 2 to 3 of a: 3 workers in a row died")


def test_the_records_of_a_prediction_are_never_left_out() -> None:
    w = running(kind="predict", predict=("a.csv",), strategy="local", skip_damaged=True)
    w.task()
    die(w, 0, **CRASH)
    for _ in range(2):
        meet(w, CRASH)
    assert w.outcome.state == "failed"
    assert "--skip-damaged" not in w.outcome.reason
