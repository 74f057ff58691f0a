"""Tasks and their leases."""

from __future__ import annotations

import itertools
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest

from master.state.work.tasks import TaskQueue
from tests.unit.master.world import SHARDS
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


def queue(space: TaskSpace, timeout_s: float = 10.0) -> TaskQueue:
    return TaskQueue(space, lease_ids=itertools.count(1), timeout_s=timeout_s)


def restarted(q: TaskQueue, ids: Iterator[int] | None = None, now: float = 0.0) -> TaskQueue:
    again = TaskQueue(q.space, lease_ids=ids or itertools.count(1), timeout_s=10)
    again.from_state(json.loads(json.dumps(q.to_state())), now)
    return again


def counts(q: TaskQueue) -> tuple[int, ...]:
    return q.todo, q.doing, q.done, q.records_done, q.retired_before


def every_record_of(shards, epochs: int) -> Counter[tuple[int, str, int]]:
    return Counter((e, s.name, i) for e in range(epochs) for s in shards for i in range(s.records))


class TestTaskQueue:
    def test_what_is_open_of_all_that_a_worker_has(self):
        q = queue(TaskSpace([Shard("a", 30)], 10, batch_size=4))
        leases = [q.take_next(1, 0.0) for _ in range(3)]
        assert q.open_steps(1) == (30, 9)
        q.release(leases[0].id, 0.0, committed=8)
        q.complete_lease(leases[1].id, 0.0)
        assert q.open_steps(1) == (10, 3)
        q.take_next(1, 0.0)  # the rest of the first task
        assert q.open_steps(1) == (12, 4)
        q.drop_worker(1)
        assert q.open_steps(1) == (0, 0)

    def test_the_next_attempt_hears_of_the_first_records(self):
        q = queue(TaskSpace([Shard("a", 20)], 10, batch_size=2))
        lease, other = q.take_next(1, 0.0), q.take_next(1, 0.0)
        assert not q.message(lease).HasField("first")
        first = pb.FirstRecords(framework="torch", order=0.25)
        q.begun(pb.BeginTaskRequest(lease_id=lease.id, first=first), 0.0)
        q.begun(pb.BeginTaskRequest(lease_id=99, first=first), 0.0)  # of an earlier master
        q.drop_worker(1)
        for each in (q, restarted(q, now=1.0)):
            assert each.message(each.take_next(2, 1.0)).first == first
            assert not each.message(each.take_next(2, 1.0)).HasField("first")
        assert other.task.id == 1

    def test_a_task_comes_back_from_a_worker_without_progress(self):
        q = queue(TaskSpace([Shard("a", 4)], 1), timeout_s=10)
        slow = q.take_next(1, 0.0)
        q.take_next(2, 0.0)
        q.touch(2, 5.0)
        assert q.expire(9.9) == []
        assert [(lease.worker, lease.task.id, count) for lease, count in q.expire(10.0)] == [
            (1, 0, 1)
        ]
        assert q.expire(10.0) == []
        assert q.held_by(1) == ()
        again = q.take_next(3, 10.0)
        assert (again.task, again.retried) == (slow.task, True)
        assert q.complete_lease(slow.id, 11.0) is None
        assert q.complete_lease(again.id, 11.0) is again

    def test_no_late_report_counts_once_leases_are_void(self):
        q = queue(TaskSpace([Shard("a", 2)], 1))
        early, late = q.take_next(1, 0.0), q.take_next(2, 0.0)
        q.drop_worker(1)
        q.void()
        assert q.complete_lease(early.id, 0.0) is None
        assert q.complete_lease(late.id, 0.0) is None
        assert {q.take_next(3, 0.0).task.id, q.take_next(3, 0.0).task.id} == {0, 1}

    def test_what_a_worker_does_not_know_of_comes_back(self):
        q = queue(TaskSpace([Shard("a", 5)], 1))
        kept, lost, other = q.take_next(1, 0.0), q.take_next(1, 0.0), q.take_next(2, 0.0)
        q.keep_only(1, [kept.id], 0.0)
        q.keep_only(1, [kept.id], 0.0)
        assert q.held_by(1) == (kept,)
        assert q.held_by(2) == (other,)
        assert q.take_next(1, 0.0).task == lost.task

    def test_the_task_that_a_limit_cut_is_never_retired(self):
        space = TaskSpace([Shard("a", 8)], 8, batch_size=2, max_steps=3)
        q = queue(space)
        lease = q.take_next(1, 0.0)
        assert lease.task.records == 6
        q.complete_lease(lease.id, 0.0)
        assert q.complete
        assert (q.retired_before, q.progress()) == (0, Watermarks(0, {0: 6}))
        longer = queue(TaskSpace([Shard("a", 8)], 8, batch_size=2, max_steps=4))
        longer.restore(q.progress())
        assert longer.take_next(1, 0.0).offset == 6
        same = queue(space)
        same.restore(q.progress())
        assert same.complete

    def test_restore_of_progress(self):
        space = TaskSpace([Shard("a", 20)], 4, batch_size=2)
        q = queue(space)
        leases = [q.take_next(1, 0.0) for _ in range(5)]
        q.complete_lease(leases[0].id, 0.0)
        q.complete_lease(leases[3].id, 0.0)
        q.release(leases[2].id, 0.0, committed=2)
        progress = q.progress()
        assert progress == Watermarks(1, {3: 4, 2: 2})
        new = queue(space)
        new.restore(progress)
        assert (new.records_done, new.steps_done, new.done, new.todo) == (10, 5, 2, 3)
        assert [(x.task.id, x.offset) for x in iter(lambda: new.take_next(1, 0.0), None)] == [
            (1, 0),
            (2, 2),
            (4, 0),
        ]
        q.restore(progress)
        assert q.complete_lease(leases[4].id, 0.0) is None
        assert q.progress() == progress

    @pytest.mark.parametrize("seed", range(40))
    def test_storm(self, seed):
        """Workers lease, die, lie low, release, fail and lose answers; each record counts once."""
        rng = random.Random(seed)
        shards = [Shard(str(i), rng.randrange(0, 30)) for i in range(rng.randrange(1, 4))]
        epochs = rng.randrange(1, 4)
        space = TaskSpace(
            shards,
            rng.randrange(1, 9),
            epochs=epochs,
            seed=seed,
            shuffle=rng.random() < 0.7,
            batch_size=rng.randrange(1, 4),
        )
        q = queue(space, timeout_s=10)
        now = 0.0
        counted: Counter[tuple[int, str, int]] = Counter()
        offsets: Counter[int] = Counter()
        taken = []  # (lease, worker), including leases that the queue has dropped
        saved = (q.progress(), counted.copy(), offsets.copy())

        def count(lease, first: int, last: int) -> None:
            task = lease.task
            for i in range(task.start + first, task.start + last):
                counted[task.epoch, task.shard, i] += 1

        for _ in range(100_000):
            if q.complete:
                break
            now += rng.random() * 2
            worker = rng.randrange(4)
            action = rng.random()
            if action < 0.5 or not taken:
                lease = q.take_next(worker, now)
                if lease is not None:
                    assert lease.offset == offsets[lease.task.id]
                    taken.append(lease)
            elif action < 0.8:
                lease = taken.pop(rng.randrange(len(taken)))
                done = q.complete_lease(lease.id, now)
                if done is not None:
                    count(lease, offsets[lease.task.id], lease.task.records)
                    offsets[lease.task.id] = lease.task.records
            elif action < 0.88:
                lease = taken.pop(rng.randrange(len(taken)))
                part = rng.randrange(lease.task.records - lease.offset + 1)
                if q.release(lease.id, now, committed=lease.offset + part) is not None:
                    count(lease, lease.offset, lease.offset + part)
                    offsets[lease.task.id] += part
            elif action < 0.92:
                q.drop_worker(worker)
            elif action < 0.94:
                q.fail(rng.choice(taken).id, now)
            elif action < 0.96:
                q.keep_only(worker, [x.id for x in taken if rng.random() < 0.5], now)
            elif action < 0.97:
                saved = (q.progress(), counted.copy(), offsets.copy())
            elif action < 0.975:
                q.restore(saved[0])
                counted, offsets = saved[1].copy(), saved[2].copy()
            else:
                q.expire(now)
            assert q.todo >= 0
            assert q.todo + q.doing + q.done == space.total
            assert q.records_done == sum(counted.values())
        assert q.complete
        assert counted == every_record_of(shards, epochs)
        assert (q.epoch, q.retired_before, q.doing) == (epochs, space.total, 0)
        assert q.take_next(0, now) is None

    def test_ten_million_tasks_are_not_held_and_leases_are_quick(self):
        tracemalloc.start()
        q = queue(TaskSpace([Shard(str(i), 1_000_000) for i in range(10)], 1, shuffle=True, seed=1))
        assert q.space.total == 10_000_000
        held = []
        for step in range(20_000):
            lease = q.take_next(step % 8, 0.0)
            held.append(lease)
            if len(held) > 32:
                q.complete_lease(held.pop(0).id, 0.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000
        begin = time.process_time()
        count = 20_000
        for step in range(count):
            held.append(q.take_next(step % 8, 0.0))
            q.complete_lease(held.pop(0).id, 0.0)
        rate = count / (time.process_time() - begin)
        assert rate > 10_000, f"{rate:.0f} leases/s"


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_survives_any_restart(seed: int) -> None:
    draw = random.Random(seed)
    space = TaskSpace(SHARDS, 4, epochs=2, batch_size=2, max_steps=draw.choice([0, 11]))
    ids = itertools.count(1)
    q = TaskQueue(space, lease_ids=ids, timeout_s=10)
    held: list[int] = []
    for now in range(500):
        action = draw.random()
        if action < 0.5:
            lease = q.take_next(draw.randrange(3), now)
            held += [lease.id] if lease is not None else []
        elif held and action < 0.8:
            assert q.complete_lease(held.pop(draw.randrange(len(held))), now) is not None
        elif held and action < 0.9:
            q.fail(held.pop(draw.randrange(len(held))), now, committed=draw.choice([0, 2]))
        else:
            before, q = q, restarted(q, ids, now)
            assert counts(q) == counts(before)
            assert q.to_state() == before.to_state()
        for id in held:
            q.touch(id % 3, now)
        if q.complete:
            break
    assert q.complete
    assert q.records_done == space.total_records


def test_any_number_of_tasks_takes_no_more_state_than_the_workers_have_in_hand() -> None:
    q = queue(TaskSpace([Shard("a", 10**15)], 1))
    q.take_next(0, 0.0)
    for _ in range(100_000):
        q.complete_lease(q.take_next(1, 0.0).id, 0.0)
    assert len(json.dumps(q.to_state())) < 200
    assert counts(restarted(q)) == counts(q)


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_that_advances_is_at_every_prefix(seed: int) -> None:
    draw = random.Random(seed)
    space = TaskSpace(
        [Shard("a", 20), Shard("b", 11)],
        4,
        epochs=3,
        seed=seed,
        shuffle=True,
        batch_size=2,
        max_steps=draw.choice([0, 31]),
    )
    q, at = queue(space), 0
    while not q.complete:
        ahead = at + draw.randrange(-3, 9)
        q.advance(ahead)
        at = min(max(at, ahead), space.total_records)
        assert q.records_done == at
        again = queue(space)
        again.restore(q.progress())
        assert (again.records_done, again.steps_done) == (at, q.steps_done)
        if draw.random() < 0.3:
            q.restore(q.progress())
    assert q.steps_done == space.total_steps
