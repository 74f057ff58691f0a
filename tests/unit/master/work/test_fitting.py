"""The preprocessing of a job is fitted by tasks before anything is trained."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from master.state.actions import KeepPreprocessing, PreprocessingKept
from master.state.calls import script_calls
from tests.unit.master.script_jobs import UNBOUND, script
from tests.unit.master.world import SHARDS, World, every_record, running
from torch_edl.preprocessing import Columns, column
from torch_edl.wire import master_pb2 as pb

FIT = pb.WaitUntilReadyResponse(fit=True)


def columns() -> Columns:
    return Columns(
        id=column("word").vocabulary(4), x=[column("x").normalize(), column("x").log().normalize()]
    )


def table(shard: str, start: int, end: int) -> pa.Table:
    numbers = range(start, end)
    return pa.table({"word": [f"{shard}{n % 5}" for n in numbers], "x": [n / 3 for n in numbers]})


SPEC = columns().spec
WHOLE = columns().fit([table(s.name, 0, s.records) for s in SHARDS]).to_bytes()


def job(**options: Any) -> World:
    return running(**{"workers": 2, "strategy": "allreduce", "spec": SPEC} | options)


def lease(w: World, worker: int) -> list[pb.LeaseMessage]:
    answer = w.lease(worker, fit=True)
    assert answer is not None
    return list(answer.leases)


def observe(w: World, worker: int, task: pb.LeaseMessage) -> bool:
    assert task.kind == pb.TASK_FIT
    statistics = columns().statistics()
    statistics.observe(table(task.shard, task.start, task.end))
    return w.complete(worker, task, result={"statistics": statistics.to_bytes()})


def fit(w: World, worker: int) -> None:
    while tasks := lease(w, worker):
        assert observe(w, worker, tasks[0])


def keep(w: World) -> None:
    w.tick()
    assert w.effect(KeepPreprocessing).content == WHOLE
    w.apply(PreprocessingKept())


class TestModelFiles:
    def test_training_begins_when_the_outcome_of_all_tasks_is_kept(self) -> None:
        w = job()
        assert w.wait(0) == FIT
        (first,), (second,) = lease(w, 0), lease(w, 1)
        assert first.task_id != second.task_id
        assert observe(w, 1, second)
        fit(w, 1)
        assert w.wait(1) is None  # the other worker has the last task
        assert observe(w, 0, first)
        assert w.wait(0) is None  # the outcome is not on the disk
        keep(w)
        assert w.start(0).preprocessing == WHOLE
        assert w.said("preprocessing: fitted by 32 records", "info")

    def test_a_task_is_merged_once_whoever_reports_it_and_how_often(self) -> None:
        w = job()
        [task] = lease(w, 0)
        assert observe(w, 0, task)
        assert not observe(w, 0, task)  # the answer was lost, and the worker asks again
        [lost] = lease(w, 0)
        w.kill(0)
        [again] = lease(w, 1)
        assert (again.task_id, again.retried) == (lost.task_id, True)
        assert not observe(w, 0, lost)  # it was only declared dead
        assert observe(w, 1, again)
        fit(w, 1)
        keep(w)

    @pytest.mark.parametrize("too_large", [False, True])
    def test_a_restarted_master_continues_with_what_was_merged(
        self, too_large: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        w = job()
        for _ in range(3):
            assert observe(w, 0, lease(w, 0)[0])
        [held] = lease(w, 1)
        if too_large:
            monkeypatch.setattr("master.state.work.fitting._MOST_BYTES", 10)
        after = w.restart()
        [late] = lease(w, 0)
        assert observe(w, 0, late)
        assert not observe(after, 0, late), "it was reported to the master before"
        assert observe(after, 1, held) != too_large
        assert after.job.tasks.fitting.queue.done == (0 if too_large else 4)
        fit(after, 0)
        keep(after)

    def test_a_master_that_is_restarted_later_has_the_file(self) -> None:
        w = job()
        fit(w, 0)
        again = w.restart()  # not kept before the master died: fitted again
        assert again.wait(0) == FIT
        fit(again, 0)
        keep(again)
        keep(w)
        assert w.restart(preprocessing=WHOLE).start(0).preprocessing == WHOLE

    def test_all_of_a_job_with_servers(self) -> None:
        w = job(strategy="ps")
        fit(w, 0)
        keep(w)
        w.work()
        assert w.counted == every_record()

    def test_a_local_worker_that_dies_in_the_pass_takes_no_model_with_it(self) -> None:
        w = job(workers=1, strategy="local")
        assert observe(w, 0, lease(w, 0)[0])
        w.kill(0)
        assert not w.texts("error")
        w.all_up()
        fit(w, 1)
        keep(w)
        w.kill(1)
        assert w.job.lifecycle.rollbacks == 1

    def test_a_file_that_cannot_be_written_fails_the_job(self) -> None:
        w = job()
        fit(w, 0)
        w.apply(PreprocessingKept(error="No space left"))
        assert "No space left" in w.outcome.error

    def test_too_many_distinct_values_of_all_tasks_fail_the_job(self) -> None:
        spec = Columns(id=column("word").vocabulary(4, distinct=8)).spec
        w = job(workers=1, strategy="local", spec=spec)
        for count in range(3):
            assert w.outcome is None
            few = Columns.from_spec(spec).statistics()
            few.observe({"word": [f"{count} {n}" for n in range(4)]})
            w.complete(0, lease(w, 0)[0], result={"statistics": few.to_bytes()})
        assert w.outcome.usage_error
        assert "more than 8 distinct values" in w.outcome.error

    def test_a_model_keeps_the_preprocessing_that_it_was_trained_with(self) -> None:
        w = job(workers=1, strategy="local", preprocessing=WHOLE)
        assert w.start(0).preprocessing == WHOLE
        assert lease(w, 0) == []
        other = Columns(id=column("word").vocabulary(9)).spec
        w = job(workers=1, strategy="local", preprocessing=WHOLE, spec=other)
        assert w.outcome.usage_error
        assert "id" in w.outcome.error

    @pytest.mark.parametrize("options", [{"kind": "evaluate"}, {"kind": "predict", "output": "/o"}])
    def test_what_is_not_trained_needs_the_preprocessing_of_the_model(self, options: Any) -> None:
        options |= {"load": "/m", "strategy": "auto", "workers": 1}
        assert job(**options).outcome.usage_error
        assert job(**options, preprocessing=WHOLE).start(0).preprocessing == WHOLE

    def test_columns_without_a_fit_are_kept_at_once(self) -> None:
        spec = Columns(id=column("word").hash(9)).spec
        w = job(workers=1, strategy="local", spec=spec)
        content = w.effect(KeepPreprocessing).content
        w.apply(PreprocessingKept())
        assert Columns.from_spec(spec).load_bytes(content).is_fitted
        assert w.start(0) is not None


class TestScripts:
    """A script asks for its preprocessing, which its processes fit."""

    def ask(self, w: World, worker: int, spec: str = SPEC, first: int = 20) -> Any:
        shards = [pb.SourceShard(name="a", records=first), pb.SourceShard(name="b", records=12)]
        request = pb.FitPreprocessingRequest(worker_id=worker, preprocessing=spec, shards=shards)
        return w.call(script_calls.fit_preprocessing, request)

    @pytest.fixture
    def w(self) -> World:
        w = script()
        for rank in (0, 1):
            w.register(11 + rank, local_rank=rank)
            assert self.ask(w, rank) == pb.FitPreprocessingResponse(fit=True)
        return w

    def test_each_task_counts_once_whoever_dies(self, w: World) -> None:
        [lost] = lease(w, 0)
        assert w.register(13, local_rank=0) == 2  # in the place of the first
        assert self.ask(w, 2).fit
        fit(w, 1)
        assert self.ask(w, 1) is None or self.ask(w, 1).fit
        assert not observe(w, 0, lost)
        fit(w, 2)
        assert self.ask(w, 2) is None  # not on the disk
        keep(w)
        for worker in (1, 2):
            assert self.ask(w, worker).fitted == WHOLE
        assert self.ask(w, 0).leave
        assert w.ring(1, 2).number == 1

    def test_a_restarted_master_continues_the_pass(self, w: World) -> None:
        for _ in range(20):
            assert observe(w, 0, lease(w, 0)[0])
        [held] = lease(w, 1)
        after = w.restart()
        assert self.ask(after, 0).fit
        assert observe(after, 1, held)
        assert after.job.tasks.fitting.queue.done == 21
        fit(after, 0)
        keep(after)
        assert self.ask(after, 1).fitted == WHOLE

    @pytest.mark.parametrize(
        "other", [{"spec": Columns(x=column("x").normalize()).spec}, {"first": 19}]
    )
    def test_processes_that_fit_different_things_fail_the_job(self, w: World, other: Any) -> None:
        assert self.ask(w, 1, **other).leave
        assert w.outcome.usage_error
        assert "job.fit()" in w.outcome.error

    def test_on_servers_a_process_that_is_behind_waits_for_the_servers_alone(self) -> None:
        w = script(strategy="auto")
        first, second = w.register(11), w.register(12, local_rank=1)
        assert self.ask(w, first).fit
        w.report_model(second, UNBOUND)
        w.servers_up()
        assert w.start(second) is not None
        fit(w, first)

    def test_on_servers_there_is_no_pass_beside_training(self) -> None:
        w = script(strategy="auto")
        worker = w.register(11)
        w.report_model(worker, UNBOUND)
        w.servers_up()
        w.report_data(worker)
        assert self.ask(w, worker).leave
        assert "training has begun" in w.outcome.error
