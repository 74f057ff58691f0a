"""A training script on parameter servers: its strategy, its data and its tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.master.scripts.script_on_servers_world import (
    CHANGED,
    DRAIN,
    SMALL,
    UNBOUND,
    World,
    begun,
)
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

# ---- the strategy ----


def test_allreduce_is_decided_at_once_and_starts_nothing() -> None:
    w = World(strategy="allreduce")
    assert w.status().strategy == "allreduce"
    answer = w.report(w.register(1), SMALL)
    assert answer.strategy == "allreduce"
    assert w.started == []


@pytest.mark.parametrize("most", [1, 3])
def test_a_small_model_runs_in_a_ring_also_alone(most: int) -> None:
    w = World(most=most)
    assert w.status().strategy == ""
    answer = w.report(w.register(1), SMALL)
    assert answer.strategy == "allreduce"
    w.tick()
    assert w.started == []
    assert "strategy allreduce: no large embedding" in w.texts()


@pytest.mark.parametrize(
    ("embedding", "reason"),
    [
        (UNBOUND, "embedding rows has no bound"),
        (pb.EmbeddingReport(name="big", num_embeddings=10**7, dim=8), "embedding big of"),
    ],
)
def test_a_large_embedding_goes_to_servers_that_the_master_starts(
    embedding: pb.EmbeddingReport, reason: str
) -> None:
    w = World()
    worker = w.register(1)
    assert w.report(worker, embedding) is None
    w.servers_up()
    assert [(s.spec.role, s.spec.module) for s in w.started] == [("ps", "torch_edl.ps_server")] * 2
    answer = w.report(worker, embedding)
    assert answer.strategy == "ps"
    assert [s.address for s in answer.cluster.servers] == ["s0:1", "s1:1"]
    assert reason in answer.reason


def test_servers_that_were_asked_for_start_before_any_worker_is_there() -> None:
    w = World(strategy="ps", servers=3)
    assert len(w.started) == 3


def test_an_optimizer_that_servers_cannot_run_fails_the_job() -> None:
    w = World()
    w.report(w.register(1), UNBOUND, optimizer_error="servers cannot run LBFGS")
    assert w.outcome.exit_code == 2
    assert "LBFGS" in w.outcome.error


# ---- the data ----


def test_the_first_loader_defines_the_tasks() -> None:
    w = World(strategy="ps")
    w.servers_up()
    worker = w.register(1)
    assert w.report(worker, UNBOUND)
    assert w.lease(worker) is None, "nobody knows the data yet"
    assert w.tell(worker)
    changed = w.lease(worker, life=0)
    assert changed.next == CHANGED
    assert [s.address for s in changed.cluster.servers] == ["s0:1", "s1:1"]
    tasks = [w.task(worker) for _ in range(4)]
    assert [(t.shard, t.epoch, t.start, t.end) for t in tasks[:1]] == [("dataset", 0, 0, 50)]
    w.job.tasks.drop_worker(worker)
    tasks = []
    for _ in range(4):
        tasks.append(w.task(worker))
        w.done(worker, tasks[-1])
    assert [(t.epoch, t.start, t.end) for t in tasks] == [
        (0, 0, 50),
        (0, 50, 100),
        (1, 0, 50),
        (1, 50, 100),
    ]
    status = w.status()
    assert (status.epochs, status.epoch) == (2, 2)
    assert (status.records_done, status.records_total, status.tasks_done) == (200, 200, 4)


def test_data_before_a_model_is_refused() -> None:
    w = World(strategy="ps")
    with pytest.raises(UsageError, match="before its data"):
        w.tell(w.register(1))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"records": 1000}, "this process has 1,000 records, another had 100;"),
        ({"epochs": 3}, "this process has epochs=3, another had epochs=2"),
        ({"batch_size": 5}, "this process has batch_size=5, another had batch_size=10"),
        ({"shuffle": True}, "this process has shuffle=True, another had shuffle=False"),
        ({"seed": 4}, "this process has seed=4, another had seed=0"),
        ({"samples": "ab"}, r"stores other samples.*random_split\(dataset, lengths, generator="),
    ],
)
def test_other_data_are_the_error_of_the_worker_that_has_them(
    change: dict[str, Any], text: str
) -> None:
    w = begun()
    other = w.register(2, local_rank=1)
    assert w.tell(other)
    with pytest.raises(UsageError, match=text):
        w.tell(other, **change)
    assert w.outcome is None
    assert w.task(0).start == 0


def test_no_records_are_no_data() -> None:
    w = World(strategy="ps")
    w.servers_up()
    worker = w.register(1)
    w.report(worker, UNBOUND)
    with pytest.raises(UsageError, match="at least one"):
        w.tell(worker, records=0)


# ---- tasks ----


def test_the_tasks_of_a_dead_worker_go_to_others() -> None:
    w = begun()
    other = w.register(2, local_rank=1)
    lost = w.task(other)
    dead = pb.AgentWorker(local_rank=1, pid=2, exited=True, code=-9)
    w.agent(workers=[dead])
    lease = w.task(0)
    assert (lease.task_id, lease.retried) == (lost.task_id, True)
    assert w.lease(other).next == DRAIN
    assert "worker-1 lost: ended with signal 9" in w.texts()


def test_a_worker_that_leaves_gives_its_tasks_back() -> None:
    w = begun()
    lost = w.task(0)
    other = w.register(2, local_rank=1)
    w.calls.leave_ring(pb.LeaveRingRequest(worker_id=0), w.now)
    assert w.task(other).task_id == lost.task_id
    assert "gone" not in w.texts()


def test_a_worker_in_the_place_of_another_takes_its_tasks() -> None:
    w = begun()
    lost = w.task(0)
    lease = w.task(w.register(9))
    assert (lease.task_id, lease.retried) == (lost.task_id, True)


def test_a_lost_server_begins_a_new_life() -> None:
    w = begun()
    first = w.task(0)
    w.done(0, first)
    second = w.task(0)
    w.kill_server()
    assert w.lease(0, second.lease_id, life=1) is None, "the servers start"
    w.servers_up()
    assert len(w.started) == 4
    assert len(w.stopped) == 1, "the other server of that life ends too"
    changed = w.lease(0, second.lease_id, life=1)
    assert (changed.next, changed.cluster.incarnation) == (CHANGED, 2)
    assert not w.done(0, second)
    assert w.task(0).task_id == first.task_id


def test_a_lost_server_takes_the_job_back_to_its_checkpoint() -> None:
    w = begun(checkpoints=True)
    w.job.checkpoints._every = w.job.checkpoints._next = 5
    w.done(0, w.task(0))
    w.tick()
    saved = w.save()
    w.done(0, w.task(0))
    w.kill_server()
    w.servers_up()
    assert w.started[-1].spec.args[-2:] == ["--restore", str(saved.path)]
    assert w.task(0).task_id == 1
