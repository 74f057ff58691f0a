"""Every part of a job comes back from what a restarted master finds."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest

from master.state.actions import CommitLocal, Release, SaveServers, Start
from master.state.job.restart import to_state
from master.state.work.tasks import TaskQueue
from tests.unit.master.model_file_world import SHARDS, World, every_record
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.wire import master_pb2 as pb


def restarted(queue: TaskQueue, ids: Iterator[int], now: float) -> TaskQueue:
    again = TaskQueue(queue.space, lease_ids=ids, timeout_s=10)
    again.from_state(json.loads(json.dumps(queue.to_state())), now)
    return again


def counts(queue: TaskQueue) -> tuple[int, ...]:
    return queue.todo, queue.doing, queue.done, queue.records_done, queue.retired_before


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_of_tasks_survives_any_restart(seed: int) -> None:
    draw = random.Random(seed)
    space = TaskSpace(SHARDS, 4, epochs=2, batch_size=2, max_steps=draw.choice([0, 11]))
    ids = itertools.count(1)
    queue = TaskQueue(space, lease_ids=ids, timeout_s=10)
    held: list[int] = []
    for now in range(500):
        action = draw.random()
        if action < 0.5:
            lease = queue.lease(draw.randrange(3), now)
            held += [lease.id] if lease is not None else []
        elif held and action < 0.8:
            assert queue.complete_lease(held.pop(draw.randrange(len(held))), now) is not None
        elif held and action < 0.9:
            queue.fail(held.pop(draw.randrange(len(held))), now, committed=draw.choice([0, 2]))
        else:
            before, queue = queue, restarted(queue, ids, now)
            assert counts(queue) == counts(before)
            assert queue.to_state() == before.to_state()
        for id in held:
            queue.touch(id % 3, now)
        if queue.complete:
            break
    assert queue.complete
    assert queue.records_done == space.total_records


def test_the_tasks_of_a_model_file_come_back_once_the_data_is_known() -> None:
    w = World(workers=2, eval_records=4, eval_every=2)
    w.all_up()
    w.work(tasks=3)
    (lease,) = w.lease(0).leases
    again = World(workers=2, eval_records=4, eval_every=2, left=left_by(w), now=w.now)
    assert again.job.done() == w.job.done()
    w.tick()
    assert again.job.tasks.evaluations.results == w.job.tasks.evaluations.results != []
    held = again.lease(0, held=[lease.lease_id])
    assert held.next == pb.LeaseResponse.LEASED
    assert lease.task_id not in [other.task_id for other in held.leases]
    assert again.complete(0, lease)


def left_by(w: World) -> dict:
    return json.loads(json.dumps(to_state(w.job)))


def test_a_state_says_the_same_after_it_was_read() -> None:
    w = World(workers=2, eval_records=40, eval_every=2, dir="/ck", every=3)
    w.all_up()
    w.work(tasks=3)
    w.lease(0), w.lease(1)
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=3), w.now)
    w.tick()
    left = left_by(w)
    again = World(
        workers=2, eval_records=40, eval_every=2, dir="/ck", every=3, left=left, now=w.now
    )
    assert again.actions == [Release(w.job.fleet.cluster().servers, "j"), again.actions[-1]]
    assert isinstance(again.actions[-1], SaveServers), "the checkpoint that was under way"
    told = left_by(again)
    for part in ("lifecycle", "members", "tasks", "preparation", "milestones"):
        assert told[part] == left[part], part
    for state in (told, left):
        for process in state["fleet"]["processes"]:
            del process["started_at"], process["heard_at"]
    assert told["fleet"] == left["fleet"]
    assert told["job"] == {**left["job"], "restarts": 1}


def test_any_number_of_tasks_takes_no_more_state_than_the_workers_have_in_hand() -> None:
    space = TaskSpace([Shard("a", 10**15)], 1)
    queue = TaskQueue(space, lease_ids=itertools.count(1))
    first = queue.lease(0, 0.0)
    for _ in range(100_000):
        lease = queue.lease(1, 0.0)
        assert lease is not None
        queue.complete_lease(lease.id, 0.0)
    assert first is not None
    text = json.dumps(queue.to_state())
    assert len(text) < 200
    again = TaskQueue(space, lease_ids=itertools.count(1))
    again.from_state(json.loads(text), 0.0)
    assert counts(again) == counts(queue)


def test_a_lease_that_the_new_master_does_not_know_is_taken_over() -> None:
    w = World(workers=2)
    w.all_up()
    left = left_by(w)
    (unknown,) = w.lease(0).leases
    task = pb.LeasedTask(kind=unknown.kind, task_id=unknown.task_id, incarnation=1)
    again = World(workers=2, left=left, now=w.now)
    request = pb.LeaseRequest(
        worker_id=0, want=1, incarnation=1, held=[unknown.lease_id], tasks=[task]
    )
    (other,) = again.calls.lease(request, again.now).leases
    assert (other.task_id, other.lease_id) == (1, (1 << 32) + 1), "numbers are never used again"
    assert again.complete(0, unknown)
    assert again.job.done()[0] == 4
    assert not again.complete(0, unknown), "it counts once"


@pytest.mark.parametrize("how", ["leased to another", "done", "of an earlier model", "stranger"])
def test_a_lease_that_cannot_be_taken_over_counts_for_nothing(how: str) -> None:
    w = World(workers=2)
    w.all_up()
    left = left_by(w)
    (unknown,) = w.lease(0).leases
    again = World(workers=2, left=left, now=w.now)
    task = pb.LeasedTask(kind=unknown.kind, task_id=unknown.task_id, incarnation=1)
    worker = 0
    if how in ("leased to another", "done"):
        (newer,) = again.lease(1).leases
        assert newer.task_id == unknown.task_id
        assert how != "done" or again.complete(1, newer)
    elif how == "stranger":
        worker = 7
    else:
        task.incarnation = 0
    done = again.job.done()
    request = pb.CompleteTaskRequest(worker_id=worker, lease_id=unknown.lease_id, task=task)
    assert not again.calls.complete_task(request, again.now).known
    assert again.job.done() == done
    if how == "leased to another":
        assert again.complete(1, newer)


def test_an_evaluation_under_way_keeps_what_was_merged() -> None:
    w = World(kind="evaluate", workers=1, eval_records=0)
    w.all_up()
    for _ in range(3):
        w.do(0, w.lease(0).leases[0])
    again = World(kind="evaluate", workers=1, left=left_by(w), now=w.now)
    again.alive = {0}
    again.work()
    assert again.job.tasks.evaluations.results[0].metrics == {"loss": 0.25}
    whole = World(kind="evaluate", workers=1)
    whole.all_up()
    whole.work()
    assert again.job.tasks.evaluations.results == whole.job.tasks.evaluations.results


def test_the_commit_of_what_a_worker_wrote_is_done_again() -> None:
    """The worker may be gone by then: what it wrote is all that is left of the model."""
    w = World(strategy="local", dir="/ck", every=100)
    w.all_up()
    w.work(tasks=2)
    w.job.stop("enough", w.now)
    w.tick()
    snapshot = w.calls.lease_snapshot(pb.LeaseSnapshotRequest(worker_id=0), w.now)
    w.do(0, snapshot.lease)
    again = World(strategy="local", dir="/ck", every=100, left=left_by(w), now=w.now)
    assert again.job.state == "stopping"
    commit = again.settle(CommitLocal)
    assert (str(commit.directory), commit.manifest.steps) == (snapshot.lease.directory, 4)


def test_a_job_that_has_ended_ends_again_in_the_same_way() -> None:
    w = World()
    w.all_up()
    w.fail(0, w.lease(0).leases[0], "ValueError: bad", fatal=True, traceback="in feed")
    again = World(left=left_by(w), now=w.now)
    assert again.outcome == w.outcome
    assert not [a for a in again.actions if isinstance(a, Start)]


def test_a_process_that_was_to_be_stopped_is_told_again() -> None:
    w = World(workers=2)
    w.all_up()
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=1), w.now)
    w.tick()
    w.now += 5
    for id in (0, 1):
        w.calls.heartbeat(pb.HeartbeatRequest(worker_id=id), w.now)
    w.job.tick(w.now + 6)  # the master is killed before it does what this says
    left = left_by(w)
    assert [p["state"] for p in left["fleet"]["processes"] if p["role"] == "worker"] == [
        "running",
        "stopping",
    ]
    again = World(workers=2, left=left, now=w.now + 6)
    assert again.job.fleet.process("worker", 1).state == "exited"


@pytest.mark.parametrize("seed", range(10))
def test_masters_are_killed_at_random(seed: int) -> None:
    """Each new one knows what the one before had noted some time ago. The servers know better: they
    have every record that was pushed, and no master may take another one for done."""
    draw = random.Random(seed)
    w = World(workers=3, epochs=2)
    w.all_up()
    trained: set[tuple[int, str, int]] = set()
    held: dict[int, list[pb.LeaseMessage]] = {id: [] for id in w.alive}
    left = left_by(w)

    def named(lease: pb.LeaseMessage) -> pb.LeasedTask:
        return pb.LeasedTask(kind=lease.kind, task_id=lease.task_id, incarnation=1)

    for _ in range(3000):
        if w.outcome is not None:
            break
        id, action = draw.choice(sorted(w.alive)), draw.random()
        mine = held[id]
        if action < 0.5 and len(mine) < 3:
            request = pb.LeaseRequest(
                worker_id=id,
                want=1,
                incarnation=1,
                held=[lease.lease_id for lease in mine],
                tasks=[named(lease) for lease in mine],
            )
            answer = w.calls.lease(request, w.now)
            if draw.random() < 0.9:  # else it is lost
                mine += answer.leases if answer is not None else []
        elif action < 0.8 and mine:
            lease = mine.pop(0)
            trained |= {(lease.epoch, lease.shard, i) for i in range(lease.start, lease.end)}
            request = pb.CompleteTaskRequest(
                worker_id=id, lease_id=lease.lease_id, task=named(lease)
            )
            if draw.random() < 0.9:  # else the master was killed before
                w.calls.complete_task(request, w.now)
        elif action < 0.9:
            left = left_by(w)
        elif action < 0.95:
            w, before = World(workers=3, epochs=2, left=left, now=w.now), w
            w.alive = before.alive
        w.tick(0.01)
    assert w.outcome is not None, "it never ended"
    assert trained == set(every_record(epochs=2))
