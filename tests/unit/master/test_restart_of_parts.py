"""Every part of a job comes back from what a restarted master finds."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest

from master.state.tasks import TaskQueue
from tests.unit.master.model_file_world import SHARDS, World
from torch_edl.data.task_space import TaskSpace
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
    state = json.loads(json.dumps(w.job.tasks.to_state()))
    again = World(workers=2, eval_records=4, eval_every=2)
    again.job.tasks.from_state(state, again.now)
    again.all_up()
    assert again.job.done() == w.job.done()
    assert again.job.tasks.evaluations.results == w.job.tasks.evaluations.results
    held = again.lease(0, held=[lease.lease_id])
    assert held.next == pb.LeaseResponse.LEASED
    assert lease.task_id not in [other.task_id for other in held.leases]
    assert again.complete(0, lease)
