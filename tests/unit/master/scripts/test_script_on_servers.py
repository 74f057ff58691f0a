"""A training script on parameter servers: its strategy, its data, its tasks and its end."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from master.state.actions import Flush, SaveServers
from tests.unit.master.said import CHANGED, DRAIN, FINISHED
from tests.unit.master.script_jobs import SMALL, UNBOUND, on_nodes, script
from tests.unit.master.script_jobs import on_servers as begun
from tests.unit.master.world import World
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def ready(**options: Any) -> World:
    """Return a job whose servers are up and whose worker 0 has reported its model."""
    w = script(strategy="ps", **options)
    w.servers_up()
    assert w.report_model(w.register(1), UNBOUND)
    return w


def train_all(w: World, worker: int = 0) -> None:
    while not w.job.tasks.trained:
        w.do(worker, w.task(worker))
    w.tick()


def kill_server(w: World) -> None:
    w.exit("ps", next(iter(w.fleet.servers)).id, signal=9)


# ---- the strategy ----


@pytest.mark.parametrize(("strategy", "workers"), [("auto", 1), ("auto", 3), ("allreduce", 2)])
def test_a_small_model_runs_in_a_ring_also_alone(strategy: str, workers: int) -> None:
    w = script(strategy=strategy, workers=workers)
    assert w.status().strategy == strategy.replace("auto", "")
    assert w.report_model(w.register(1), SMALL).strategy == "allreduce"
    w.tick()
    assert w.started == []
    assert w.status().strategy == "allreduce"


@pytest.mark.parametrize(
    "embedding", [UNBOUND, pb.EmbeddingReport(name="rows", num_embeddings=10**7, dim=8)]
)
def test_a_large_embedding_goes_to_servers_that_the_master_starts(
    embedding: pb.EmbeddingReport,
) -> None:
    w = script(strategy="auto")
    worker = w.register(1)
    assert w.report_model(worker, embedding) is None
    w.servers_up()
    assert [(s.role, s.module) for s in w.started] == [("ps", "torch_edl.ps_server")] * 2
    answer = w.report_model(worker, embedding)
    assert answer.strategy == "ps"
    assert [s.address for s in answer.cluster.servers] == ["s0", "s1"]
    assert "embedding rows" in answer.reason


def test_servers_that_were_asked_for_start_before_any_worker_is_there() -> None:
    assert len(script(strategy="ps", servers=3).started) == 3


# ---- the data ----


def test_the_first_loader_defines_the_tasks() -> None:
    w = ready()
    assert w.lease(0) is None, "the data are not known yet"
    assert w.report_data(0)
    changed = w.lease(0, incarnation=0)
    assert changed.next == CHANGED
    assert [s.address for s in changed.cluster.servers] == ["s0", "s1"]
    tasks = []
    for _ in range(4):
        tasks.append(w.task(0))
        w.do(0, tasks[-1])
    spans = [(t.shard, t.epoch, t.start, t.end) for t in tasks]
    data = [("dataset", epoch, *span) for epoch in (0, 1) for span in ((0, 50), (50, 100))]
    assert spans == data
    status = w.status()
    assert (status.epochs, status.epoch) == (2, 2)
    assert (status.records.done, status.records.total, status.tasks.done) == (200, 200, 4)


def test_data_before_a_model_and_data_without_records_are_refused() -> None:
    w = script(strategy="ps")
    with pytest.raises(UsageError, match="before its data"):
        w.report_data(w.register(1))
    with pytest.raises(UsageError, match="at least one"):
        ready().report_data(0, records=0)


@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ({"label": "1", "text": "3"}, True),  # augmentation may make any part random
        ({"other": "1"}, True),
        ({}, True),
        ({"label": "2", "text": "3"}, False),
    ],
)
def test_workers_have_a_part_of_their_first_records_in_common(
    parts: dict[str, str], same: bool
) -> None:
    w = ready()
    w.report_data(0, first_records={"label": "1", "text": "2"})
    other = w.register(2, local_rank=1)
    refused = pytest.raises(UsageError, match="remove split_dataset_by_node")
    with contextlib.nullcontext() if same else refused:
        w.report_data(other, first_records=parts)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"records": 1000}, "1,000 .* 100"),
        ({"epochs": 3}, "epochs=3.*epochs=2"),
        ({"batch_size": 5}, "batch_size=5.*batch_size=10"),
        ({"shuffle": True}, "shuffle=True.*shuffle=False"),
        ({"seed": 4}, "seed=4.*seed=0"),
        ({"samples": "ab"}, r"random_split\(dataset, lengths, generator="),
    ],
)
def test_other_data_are_the_error_of_the_worker_that_has_them(
    change: dict[str, Any], values: str
) -> None:
    w = begun()
    other = w.enter(1).worker_id
    assert w.report_data(other)
    with pytest.raises(UsageError, match=values):
        w.report_data(other, **change)
    assert w.outcome is None
    assert w.task(0).start == 0


# ---- tasks ----


@pytest.mark.parametrize("how", ["dies", "leaves", "is replaced"])
def test_the_tasks_of_a_worker_that_is_gone_go_to_others(how: str) -> None:
    w = begun()
    other = w.enter(1).worker_id
    lost = w.task(other)
    if how == "dies":
        w.exit("worker", other, signal=9)
        assert w.said("worker-1 ended with signal 9; its tasks were returned to the queue")
    elif how == "leaves":
        w.leave(other)
        assert not w.said("lost")
    else:
        assert w.enter(1, pid=99), "the next program of a shell script"
        assert w.said("worker-1 lost: another process took its place")
    lease = w.task(0)
    assert (lease.task_id, lease.retried) == (lost.task_id, True)
    if how != "is replaced":
        assert w.lease(other).next == DRAIN


# ---- the end ----


def test_scripts_hear_of_the_end_once_the_model_is_saved() -> None:
    w = begun(dir="/c")
    train_all(w)
    assert w.lease(0) is None, "the checkpoint is not written"
    saved = w.save()
    w.tick()
    assert w.lease(0).next == FINISHED
    late = w.enter(1).worker_id
    assert w.report_model(late, UNBOUND)
    assert w.report_data(late)
    assert w.lease(late, incarnation=0).next == FINISHED
    assert w.outcome is None
    w.complete_script()
    assert w.outcome.state == "finished"
    w.tick()
    assert {(s.role, s.grace_s > 0) for s in w.stopped} == {("ps", True)}
    w.tick()
    assert w.job.lifecycle.over
    assert w.status().checkpoint == str(saved.path)


def test_a_script_that_leaves_its_loop_early_ends_the_job_with_what_it_has() -> None:
    w = begun(dir="/c")
    w.do(0, w.task(0))
    w.tick()
    w.complete_script()
    assert w.outcome is None, "the last checkpoint is not written"
    w.tick()
    saved = w.save()
    assert saved.manifest.watermarks.retired_before == 1
    w.tick()
    assert w.outcome.state == "finished"
    assert w.said("with 3 tasks to do", "warning")
    status = w.status()
    assert status.records_early == status.records.total - status.records.done > 0
    # Another job goes on there, with the same data.
    again = begun(dir="/c", resumed=saved)
    assert again.task(0).task_id == 1
    assert next(s for s in again.started if s.role == "ps").args[-1] == str(saved.path)
    for change, values in (
        ({"shuffle": True}, ("shuffle=False", "shuffle=True")),
        ({"files": "another"}, ("another",)),
    ):
        other = ready(dir="/c", resumed=saved)
        other.report_data(0, **change)
        assert other.outcome.usage_error
        assert all(value in other.outcome.error for value in values)


def test_a_script_that_never_begins_its_loader_ends_the_job() -> None:
    w = on_nodes(strategy="ps")
    w.enter(0)
    w.complete_script()
    assert w.outcome.state == "finished"


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_server_lost_after_the_training(checkpoint: bool) -> None:
    w = begun(**({"dir": "/c"} if checkpoint else {}))
    train_all(w)
    saved = w.save() if checkpoint else None
    w.tick()
    assert w.lease(0).next == FINISHED
    kill_server(w)
    if saved is None:
        assert w.outcome.state == "failed"
        assert "--checkpoint-dir" in w.outcome.error
        return
    w.servers_up()
    assert w.started[-1].args[-1] == str(saved.path)
    assert w.lease(0).next == FINISHED
    assert not [e for e in w.actions if isinstance(e, SaveServers | Flush)]
    w.complete_script()
    assert w.outcome.state == "finished"


def test_the_worker_of_a_script_never_makes_room_for_a_server() -> None:
    w = begun(durability={"mode": "journal", "failover": "worker"})
    w.enter(1)
    kill_server(w)
    w.tick()
    assert w.started[-1].name == "ps-2"
    assert {p.state for p in w.fleet.alive("worker")} == {"running"}


def test_the_servers_and_the_tasks_outlive_a_master_that_is_killed() -> None:
    w = begun()
    lease = w.task(0)
    again = w.restart()
    assert again.outcome is None
    assert not again.started
    assert again.fleet.cluster() == w.fleet.cluster()
    again.do(0, lease)
    assert again.job.done() == (50, 5)
    undecided = script(strategy="auto")
    undecided.register(1)
    assert undecided.restart().report_model(0, SMALL).strategy == "allreduce"
