"""The preprocessing of a job is fitted by tasks before anything is trained."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from master.state.actions import KeepPreprocessing, PreprocessingKept
from master.state.job.restart import to_state
from tests.unit.master.model_file_world import SHARDS, World, every_record
from torch_edl.preprocessing import Columns, column
from torch_edl.wire import master_pb2 as pb


def columns() -> Columns:
    return Columns(
        id=column("word").vocabulary(4), x=[column("x").normalize(), column("x").log().normalize()]
    )


SPEC = columns().spec


def table(shard: str, start: int, end: int) -> pa.Table:
    numbers = range(start, end)
    return pa.table({"word": [f"{shard}{n % 5}" for n in numbers], "x": [n / 3 for n in numbers]})


WHOLE = columns().fit([table(s.name, 0, s.records) for s in SHARDS]).to_bytes()


class FittingWorld(World):
    """Its model file has preprocessing."""

    spec = SPEC

    def report_model(self, id: int, **fields: Any) -> Any:
        return super().report_model(id, preprocessing=self.spec, **fields)

    def wait(self, id: int) -> pb.WaitUntilReadyResponse | None:
        return self.calls.wait_until_ready(pb.WaitUntilReadyRequest(worker_id=id), self.now)

    def lease_fit(self, id: int, held: tuple[int, ...] = ()) -> list[pb.LeaseMessage]:
        request = pb.LeaseRequest(worker_id=id, want=1, fit=True, held=held)
        answer = self.calls.lease(request, self.now)
        assert answer is not None
        return list(answer.leases)

    def observe(self, id: int, lease: pb.LeaseMessage) -> bool:
        assert lease.kind == pb.TASK_FIT
        statistics = columns().statistics()
        statistics.observe(table(lease.shard, lease.start, lease.end))
        return self.complete(id, lease, result={"statistics": statistics.to_bytes()})

    def fit(self, id: int) -> None:
        while leases := self.lease_fit(id):
            assert self.observe(id, leases[0])

    def keep(self) -> bytes:
        self.tick()
        action = self.settle(KeepPreprocessing)
        self.job.apply(PreprocessingKept(), self.now)
        return action.content  # type: ignore[no-any-return]


def restarted(world: FittingWorld, **more: Any) -> FittingWorld:
    left = json.loads(json.dumps(to_state(world.job)))
    made = FittingWorld(workers=2, strategy="allreduce", left=left, now=world.now, **more)
    made.alive = set(world.alive)
    return made


@pytest.fixture
def world() -> FittingWorld:
    made = FittingWorld(workers=2, strategy="allreduce")
    made.all_up()
    return made


def test_training_begins_when_the_outcome_of_all_tasks_is_kept(world: FittingWorld) -> None:
    assert world.wait(0) == pb.WaitUntilReadyResponse(fit=True)
    first, second = world.lease_fit(0), world.lease_fit(1)
    assert first[0].task_id != second[0].task_id
    assert world.observe(1, second[0])
    world.fit(1)
    assert world.wait(1) is None  # the other worker has the last task
    assert world.observe(0, first[0])
    assert world.wait(0) is None  # the outcome is not on the disk
    assert world.keep() == WHOLE
    start = world.wait(0)
    assert start is not None
    assert start.start.preprocessing == WHOLE
    assert "preprocessing: fitted by 32 records" in world.texts("info")


def test_a_task_is_merged_once_whoever_reports_it_and_how_often(world: FittingWorld) -> None:
    [lease] = world.lease_fit(0)
    assert world.observe(0, lease)
    assert not world.observe(0, lease)  # the answer was lost, and the worker asks again
    [lost] = world.lease_fit(0)
    world.exit("worker", 0, signal=9)
    [again] = world.lease_fit(1)
    assert (again.task_id, again.retried) == (lost.task_id, True)
    assert not world.observe(0, lost)  # it was only declared dead
    assert world.observe(1, again)
    world.fit(1)
    assert world.keep() == WHOLE


def test_a_restarted_master_continues_with_what_was_merged(world: FittingWorld) -> None:
    for _ in range(3):
        assert world.observe(0, world.lease_fit(0)[0])
    [held] = world.lease_fit(1)
    after = restarted(world)
    # Reported to the master before after it had noted its state for the last time.
    late = world.lease_fit(0)[0]
    assert world.observe(0, late)
    assert not after.observe(0, late)
    assert after.observe(1, held)
    queue = after.job.tasks.fitting.queue
    assert queue is not None
    assert queue.done == 4
    after.fit(0)
    assert after.keep() == WHOLE


def test_statistics_that_are_too_large_for_the_state_are_taken_again(
    world: FittingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.observe(0, world.lease_fit(0)[0])
    monkeypatch.setattr("master.state.work.fitting._MOST_BYTES", 10)
    after = restarted(world)
    queue = after.job.tasks.fitting.queue
    assert queue is not None
    assert queue.done == 0
    after.fit(0)
    assert after.keep() == WHOLE


def test_a_master_that_is_restarted_later_has_the_file(world: FittingWorld) -> None:
    world.fit(0)
    content = world.keep()
    after = restarted(world, preprocessing=content)
    assert after.job.tasks.fitting.ready
    start = after.wait(0)
    assert start is not None
    assert start.start.preprocessing == WHOLE
    # Not kept before the master died: fitted again.
    again = restarted(world)
    assert again.wait(0) == pb.WaitUntilReadyResponse(fit=True)
    again.fit(0)
    assert again.keep() == WHOLE


def test_all_of_a_job_with_servers() -> None:
    world = FittingWorld(workers=1, servers=2)
    world.all_up()
    world.fit(0)
    assert world.keep() == WHOLE
    world.work()
    assert world.counted == every_record()


def test_a_local_worker_that_dies_in_the_pass_takes_no_model_with_it() -> None:
    world = FittingWorld(strategy="local")
    world.all_up()
    assert world.observe(0, world.lease_fit(0)[0])
    world.exit("worker", 0, signal=9)
    assert not world.texts("error")
    world.all_up()
    [worker] = world.alive
    world.fit(worker)
    assert world.keep() == WHOLE
    world.exit("worker", worker, signal=9)
    assert "model" in world.texts("error")[0] or "worker" in world.texts("error")[0]


def test_a_file_that_cannot_be_written_fails_the_job(world: FittingWorld) -> None:
    world.fit(0)
    world.tick()
    world.job.apply(PreprocessingKept(error="No space left"), world.now)
    assert "preprocessing cannot be kept: No space left" in world.outcome.error


def test_too_many_distinct_values_of_all_tasks_fail_the_job() -> None:
    world = FittingWorld(workers=1, strategy="local")
    world.spec = Columns(id=column("word").vocabulary(4, distinct=8)).spec
    world.all_up()
    few = Columns.from_spec(world.spec).statistics()
    for count in range(3):
        few = Columns.from_spec(world.spec).statistics()
        few.observe({"word": [f"{count} {n}" for n in range(4)]})
        world.complete(0, world.lease_fit(0)[0], result={"statistics": few.to_bytes()})
        if count < 2:
            assert world.outcome is None
    assert world.outcome.usage_error
    assert "more than 8 distinct values" in world.outcome.error


def test_a_model_keeps_the_preprocessing_that_it_was_trained_with() -> None:
    world = FittingWorld(workers=1, strategy="local", preprocessing=WHOLE)
    world.all_up()
    start = world.wait(0)
    assert start is not None
    assert start.start.preprocessing == WHOLE
    assert world.lease_fit(0) == []


@pytest.mark.parametrize("kind", ["evaluate", "predict"])
def test_what_is_not_trained_needs_the_preprocessing_of_the_model(kind: str) -> None:
    output = {"load": "/m"} if kind == "evaluate" else {"load": "/m", "output": "/o.csv"}
    world = FittingWorld(workers=1, kind=kind, strategy="auto", **output)
    world.all_up()
    assert "no preprocessing with it" in world.outcome.error
    world = FittingWorld(workers=1, kind=kind, strategy="auto", preprocessing=WHOLE, **output)
    world.all_up()
    start = world.wait(0)
    assert start is not None
    assert start.start.preprocessing == WHOLE


def test_other_columns_than_those_of_the_model_are_an_error() -> None:
    world = FittingWorld(workers=1, strategy="local", preprocessing=WHOLE)
    world.spec = Columns(id=column("word").vocabulary(9)).spec
    world.all_up()
    assert world.outcome.usage_error
    assert "is of other columns: id was" in world.outcome.error


def test_columns_without_a_fit_are_kept_at_once() -> None:
    world = FittingWorld(workers=1, strategy="local")
    world.spec = Columns(id=column("word").hash(9)).spec
    world.all_up()
    world.actions += world.job.tick(world.now)
    content = world.keep()
    assert Columns.from_spec(world.spec).load_bytes(content).is_fitted
    assert world.wait(0) is not None
