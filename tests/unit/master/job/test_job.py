"""The whole job of a model file, and what it decides."""

from __future__ import annotations

import pytest

from master.state.actions import (
    CommitLocal,
    DataScanned,
    Flush,
    Flushed,
    MergePredictions,
    OutputWritten,
    WriteOutput,
)
from tests.unit.master.model_file_world import World, every_record
from torch_edl.data.task_space import Shard
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


class TestTheGoodWay:
    def test_train_evaluate_save_write_end(self):
        w = World(workers=2, eval_records=4, dir="/ck", output="/out", epochs=2)
        assert w.job.state == "starting"
        w.all_up()
        w.work()
        assert w.counted == every_record(2)
        assert w.job.state == "finishing"
        assert [r.metrics for r in w.job.tasks.evaluations.results] == [{"loss": 1 / 4}]
        saved = w.save()
        assert saved.manifest.steps == 32
        w.tick()
        assert w.settle(WriteOutput).checkpoint == saved.path
        w.tick()
        assert w.outcome is None
        w.job.apply(OutputWritten(), w.now)
        w.tick()
        assert w.outcome.state == "finished"
        assert not w.job.lifecycle.over
        w.leave()
        assert (w.job.state, w.job.lifecycle.over, w.outcome.exit_code) == (
            "finished",
            True,
            0,
        )
        assert [t for t in w.texts() if t.startswith("epoch")] == [
            "epoch 1 of 2 is done",
            "epoch 2 of 2 is done",
        ]

    def test_tasks_ahead_are_granted_while_there_are_plenty(self):
        w = World(workers=2, epochs=10)
        w.all_up()
        total = w.job.tasks.main.todo
        first = w.lease(0, ahead=100).leases
        assert len(first) == total // 4  # as much is left for each of the two, twice
        held = [lease.lease_id for lease in first]
        # It has its share: no more, and no waiting for more.
        assert w.lease(0, want=0, ahead=100, held=held).leases == []
        (wanted,) = w.lease(0, want=1, ahead=100, held=held).leases
        assert len(w.lease(1, ahead=3).leases) == 4
        ids = [lease.task_id for lease in [*first, wanted]]
        assert ids == sorted(ids)

    def test_what_is_more_urgent_is_granted_to_who_has_tasks_ahead(self):
        w = World(workers=1, eval_records=4, eval_every=2, epochs=10)
        w.all_up()
        first, *ahead = w.lease(0, ahead=4).leases
        w.do(0, first)
        w.tick()
        held = [lease.lease_id for lease in ahead]
        (urgent,) = w.lease(0, want=0, ahead=0, held=held).leases
        assert urgent.kind == pb.TASK_EVALUATE

    def test_without_anything_to_keep_it_ends_with_the_last_task(self):
        w = World()
        w.all_up()
        w.work()
        assert w.outcome.state == "finished"
        assert w.actions == []

    @pytest.mark.parametrize(("epochs", "first", "told"), [(10, 1, 10), (25, 3, 9), (100, 10, 10)])
    def test_however_many_epochs_at_most_ten_are_told(self, epochs, first, told):
        w = World(epochs=epochs)
        w.all_up()
        w.work()
        w.tick()
        lines = [text for text in w.texts() if text.startswith("epoch")]
        assert lines[0] == f"epoch {first} of {epochs} is done"
        assert lines[-1] == f"epoch {epochs} of {epochs} is done"
        assert len(lines) == told

    def test_max_steps_is_exact(self):
        w = World(max_steps=11)
        w.all_up()
        w.work()
        assert w.job.done() == (22, 11)
        assert sum(w.counted.values()) == 22
        assert w.outcome.state == "finished"

    @pytest.mark.parametrize(
        ("steps", "told"),
        [
            (11, ["--max-steps 11 is reached"]),
            (16, ["epoch 1 of 2 is done", "--max-steps 16 is reached after 1 of 2 epochs"]),
            (17, ["epoch 1 of 2 is done", "--max-steps 17 is reached after 1 of 2 epochs"]),
            (32, ["epoch 1 of 2 is done", "epoch 2 of 2 is done"]),
        ],
    )
    def test_an_epoch_that_max_steps_cut_is_not_said_to_be_done(self, steps, told):
        w = World(max_steps=steps, epochs=2)
        w.all_up()
        w.work()
        w.tick()
        w.tick()
        assert [text for text in w.texts() if "epoch" in text or "max" in text] == told

    def test_evaluations_while_training_and_at_the_end(self):
        w = World(eval_records=6, eval_every=5)
        w.all_up()
        w.work()
        assert [r.steps for r in w.job.tasks.evaluations.results] == [6, 10, 16]

    @pytest.mark.parametrize("kind", ["evaluate", "predict"])
    def test_other_kinds(self, kind):
        w = World(kind=kind, load="/model")
        w.all_up()
        assert w.job.fleet.cluster().restored_from == "/model"
        w.work()
        assert w.outcome.state == "finished"
        assert w.job.done()[0] == 32
        if kind == "predict":
            assert w.counted == every_record()
        else:
            assert w.job.tasks.evaluations.results[0].metrics == {"loss": 8 / 32}
            assert "evaluation: loss 0.25" in w.texts()

    def test_predictions_are_merged_before_the_job_is_finished(self):
        w = World(kind="predict", load="/model", output="/p.csv", parts="/parts")
        w.all_up()
        w.work()
        assert w.outcome is None
        merge = w.settle(MergePredictions)
        assert (str(merge.parts), str(merge.output), merge.tasks) == ("/parts", "/p.csv", 8)
        w.job.apply(OutputWritten(), w.now)
        w.tick()
        assert w.outcome.state == "finished"

    def test_predictions_that_cannot_be_merged_fail_the_job(self):
        w = World(kind="predict", load="/model", output="/p.csv", parts="/parts")
        w.all_up()
        w.work()
        w.settle(MergePredictions)
        w.job.apply(OutputWritten(error="no space"), w.now)
        w.tick()
        assert w.outcome.state == "failed"
        assert "/p.csv: the predictions cannot be written: no space" in w.outcome.error
        assert "/parts" in w.outcome.error

    def test_sync_mode_flushes_before_the_last_evaluation_and_checkpoint(self):
        w = World(mode="sync", eval_records=4, dir="/ck")
        w.all_up()
        w.work()
        flush = w.settle(Flush)
        assert w.actions == []
        assert w.job.tasks.evaluations.queues() == []
        w.job.apply(Flushed(flush.incarnation, success=False), w.now)
        w.tick()
        w.job.apply(Flushed(w.settle(Flush).incarnation, success=True), w.now)
        w.tick()
        w.work()
        w.save()
        w.tick()
        assert w.outcome.state == "finished"

    def test_local_snapshots_through_the_worker(self):
        w = World(strategy="local", dir="/ck", every=5)
        w.all_up()
        w.work(tasks=2)
        first = w.lease(0).leases[0]
        held = w.lease(0, held=[first.lease_id]).leases[0]
        assert held.kind == pb.TASK_TRAIN
        w.do(0, first)
        w.tick()
        (lease,) = w.lease(0, held=[held.lease_id]).leases
        assert (lease.kind, lease.directory) == (pb.TASK_SNAPSHOT, "/ck/.snapshot-0-1")
        w.do(0, held)  # after the snapshot began: it may not count as being in it
        watermarks = {"tasks": [{"task_id": held.task_id, "offset": 2}]}
        written = {"files": {"f": 3}, "version": 6, "watermarks": watermarks}
        w.complete(0, lease, result={"snapshot": written})
        w.tick()
        commit = w.settle(CommitLocal)
        assert (commit.manifest.files, commit.manifest.versions) == ({"f": 3}, (6,))
        assert commit.manifest.steps == 7
        assert commit.manifest.watermarks == Watermarks(3, {held.task_id: 2})


class TestDecisions:
    def test_auto_waits_for_the_model_with_its_servers(self):
        w = World(strategy="auto", workers=3)
        assert len(w.job.fleet.alive("worker")) == 3
        assert w.job.fleet.alive("ps") == []
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        rows = pb.EmbeddingReport(name="e", dim=4, dynamic=True)
        assert w.report_model(0, embeddings=[rows]) is None
        w.tick()
        assert len(w.job.fleet.alive("worker")) == 3
        assert len(w.job.fleet.alive("ps")) == 2

    def test_auto_with_one_worker_and_a_small_model_is_local(self):
        w = World(strategy="auto")
        w.up()
        answer = w.report_model(0)
        assert (answer.strategy, answer.torch_threads) == ("local", 8)
        assert answer.cluster.incarnation == 1
        assert list(answer.cluster.servers) == []

    def test_threads_are_divided_among_workers(self):
        w = World(workers=3)
        w.all_up()
        assert w.report_model(0).torch_threads == 2

    def test_an_error_of_the_model_file_fails_the_job(self):
        w = World(strategy="auto")
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        failure = pb.ReportFailureRequest(error="model.py: no loss", traceback="Traceback ...")
        w.calls.report_failure(failure, w.now)
        outcome = w.outcome
        assert (outcome.state, outcome.error, outcome.usage_error) == (
            "failed",
            "model.py: no loss",
            True,
        )
        assert outcome.traceback == "Traceback ..."
        assert w.job.fleet.alive("ps") == []

    def test_an_optimizer_that_servers_lack_fails_ps_but_not_evaluation(self):
        w = World()
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        w.report_model(0, optimizer_error="LBFGS: use sgd, adam")
        assert w.outcome.error == "LBFGS: use sgd, adam, or train with --strategy local"
        w = World(kind="evaluate", load="/m")
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        w.report_model(0, optimizer_error="LBFGS: use sgd, adam")
        assert w.outcome is None

    def test_bad_data_is_a_usage_error_unless_the_model_brings_its_own(self):
        w = World(strategy="auto")
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        w.job.apply(DataScanned({}, error="x.csv: damaged"), 0.0)
        w.report_model(0)
        assert (w.outcome.error, w.outcome.exit_code) == (
            "x.csv: damaged",
            2,
        )
        w = World(strategy="auto")
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        w.job.apply(DataScanned({}, error="x.csv: damaged"), 0.0)
        w.report_model(0, custom_source=True, shards=[{"name": "own", "records": 3}])
        assert w.outcome is None
        assert w.job.tasks.main.space.total_records == 3

    @pytest.mark.parametrize("found", [{}, {"train": [Shard("x.csv", 0)]}])
    def test_no_records_is_a_usage_error(self, found):
        w = World(strategy="auto")
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        w.report_model(0)
        w.job.apply(DataScanned(found), 0.0)
        assert w.outcome.exit_code == 2
