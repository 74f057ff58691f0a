"""The whole job of a model file, and what it decides."""

from __future__ import annotations

import pytest

from master.state.actions import (
    CommitLocal,
    DataScanned,
    MergePredictions,
    OutputWritten,
    WriteOutput,
)
from master.state.calls import worker_calls
from tests.unit.master.script_jobs import SMALL, UNBOUND
from tests.unit.master.world import World, every_record, running
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
        assert w.effect(WriteOutput).checkpoint == saved.path
        w.tick()
        assert w.outcome is None
        w.apply(OutputWritten())
        w.tick()
        assert (w.outcome.state, w.job.lifecycle.over) == ("finished", False)
        w.leave_all()
        assert (w.job.state, w.job.lifecycle.over, w.outcome.exit_code) == ("finished", True, 0)

    def test_tasks_ahead_are_granted_while_there_are_plenty(self):
        w = running(workers=2, epochs=10)
        total = w.job.tasks.main.todo
        first = w.lease(0, ahead=100).leases
        assert len(first) == total // 4  # as much is left for each of the two, twice
        held = [lease.lease_id for lease in first]
        # It has its share: no more, and no waiting for more.
        assert w.lease(0, want=0, ahead=100, held=held).leases == []
        wanted = w.task(0, ahead=100, held=held)
        assert len(w.lease(1, ahead=3).leases) == 4
        ids = [lease.task_id for lease in [*first, wanted]]
        assert ids == sorted(ids)

    def test_what_is_more_urgent_is_granted_to_who_has_tasks_ahead(self):
        w = running(eval_records=4, eval_every=2, epochs=10)
        first, *ahead = w.lease(0, ahead=4).leases
        w.do(0, first)
        w.tick()
        held = [lease.lease_id for lease in ahead]
        assert w.task(0, want=0, held=held).kind == pb.TASK_EVALUATE

    @pytest.mark.parametrize(
        ("epochs", "steps", "ends"),
        [
            (10, 0, range(1, 11)),
            (25, 0, range(3, 26, 3)),
            (100, 0, range(10, 101, 10)),
            (2, 11, []),
            (2, 16, [1]),
            (2, 17, [1]),
            (2, 32, [1, 2]),
        ],
    )
    def test_at_most_ten_ends_of_epochs_are_told_and_none_of_one_that_was_cut(
        self, epochs, steps, ends
    ):
        w = running(epochs=epochs, max_steps=steps)
        w.work()
        assert w.job.done()[1] == (steps or 16 * epochs)
        assert (w.outcome.state, w.actions) == ("finished", [])
        told = [text for text in w.texts() if text.startswith("epoch ")]
        of = f"of {epochs} is done"
        last = [f"epoch {epochs} {of}"] * (not steps and epochs not in ends)
        assert told == [f"epoch {n} {of}" for n in ends] + last
        assert w.said("--max-steps") == (0 < steps < 16 * epochs)

    @pytest.mark.parametrize("error", ["", "no space"])
    def test_predictions_are_merged_before_the_job_is_finished(self, error):
        w = running(kind="predict", load="/model", output="/p.csv", parts="/parts")
        assert w.fleet.cluster().restored_from == "/model"
        w.work()
        assert w.counted == every_record()
        assert w.outcome is None
        merge = w.effect(MergePredictions)
        assert (str(merge.parts), str(merge.output), merge.tasks) == ("/parts", "/p.csv", 8)
        w.apply(OutputWritten(error))
        w.tick()
        assert w.outcome.state == ("failed" if error else "finished")
        assert all(x in w.outcome.error for x in ("/p.csv", error, "/parts") if error)

    def test_local_snapshots_through_the_worker(self):
        w = running(strategy="local", dir="/ck", every=5)
        w.work(tasks=2)
        first = w.task()
        held = w.task(held=[first.lease_id])
        assert held.kind == pb.TASK_TRAIN
        w.do(0, first)
        w.tick()
        lease = w.task(held=[held.lease_id])
        assert (lease.kind, lease.directory) == (pb.TASK_SNAPSHOT, "/ck/.snapshot-0-1")
        w.do(0, held)  # after the snapshot began: it may not count as being in it
        watermarks = {"tasks": [{"task_id": held.task_id, "offset": 2}]}
        written = {"files": {"f": 3}, "version": 6, "watermarks": watermarks}
        w.complete(0, lease, result={"snapshot": written})
        w.tick()
        commit = w.effect(CommitLocal)
        assert (commit.manifest.files, commit.manifest.versions) == ({"f": 3}, (6,))
        assert commit.manifest.steps == 7
        assert commit.manifest.watermarks == Watermarks(3, {held.task_id: 2})

    def test_an_early_stop_saves_the_model_of_the_last_epoch(self):
        """The loss is the same after each epoch, so the second is not better than the first."""
        w = running(epochs=5, eval_records=4, early_stop="loss:1", output="/out")
        w.work(tasks=8)
        w.tick(0.1)
        assert w.beat().epochs_open == 1
        w.work()
        assert [result.steps for result in w.job.tasks.evaluations.results] == [16, 32]
        assert w.counted == every_record(2)
        assert w.said("early stop after epoch 2: loss", "info")
        assert w.job.milestones.epoch_ends == [{"loss": 0.25}, {"loss": 0.25}]
        (end,) = w.beat(epochs_heard=1).epoch_ends
        assert dict(end.values) == {"loss": 0.25}
        main = w.restart().job.tasks.main
        assert (main.complete, main.space.epochs) == (True, 2), "also under the next master"
        assert w.save().manifest.steps == 32


class TestDecisions:
    def registered(self, **options) -> World:
        w = World(**{"strategy": "auto", **options})
        w.call(worker_calls.register, pb.RegisterRequest(worker_id=0))
        return w

    def test_the_job_says_on_which_device_its_workers_compute(self):
        w = self.registered()
        w.report_model(0, device="cuda:0 (H100)")
        assert w.said("the first worker computes on cuda:0 (H100)", "info")

    def test_auto_waits_for_the_model_with_its_servers(self):
        w = self.registered(workers=3)
        assert [len(w.fleet.alive(role)) for role in ("worker", "ps")] == [3, 0]
        assert w.report_model(0, UNBOUND) is None
        w.tick()
        assert [len(w.fleet.alive(role)) for role in ("worker", "ps")] == [3, 2]

    def test_auto_with_one_worker_and_a_small_model_is_local(self):
        answer = self.registered().report_model(0, SMALL)
        assert answer is None, "the data are not counted"
        answer = running(strategy="auto").start()
        assert (answer.strategy, answer.torch_threads) == ("local", 8)
        assert running(workers=3).start().torch_threads == 2
        assert (answer.cluster.incarnation, list(answer.cluster.servers)) == (1, [])

    def test_an_error_of_the_model_file_fails_the_job(self):
        w = self.registered()
        failure = pb.ReportFailureRequest(error="model.py: no loss", traceback="Traceback ...")
        w.call(worker_calls.report_failure, failure)
        assert (w.outcome.state, w.outcome.error) == ("failed", "model.py: no loss")
        assert (w.outcome.usage_error, w.outcome.traceback) == (True, "Traceback ...")
        assert w.fleet.alive("ps") == []

    def test_an_optimizer_that_servers_lack_fails_ps_but_not_evaluation(self):
        w = self.registered(strategy="ps")
        w.report_model(optimizer_error="LBFGS: use sgd, adam")
        assert w.outcome.error.startswith("LBFGS: use sgd, adam")
        w = self.registered(strategy="ps", kind="evaluate", load="/m")
        w.report_model(optimizer_error="LBFGS: use sgd, adam")
        assert w.outcome is None

    def test_bad_data_is_a_usage_error_unless_the_model_brings_its_own(self):
        w, own = self.registered(), self.registered()
        for each in (w, own):
            each.apply(DataScanned({}, error="x.csv: damaged"))
        w.report_model()
        assert (w.outcome.error, w.outcome.exit_code) == ("x.csv: damaged", 2)
        own.report_model(custom_source=True, shards=[{"name": "own", "records": 3}])
        assert own.outcome is None
        assert own.job.tasks.main.space.total_records == 3

    @pytest.mark.parametrize("found", [{}, {"train": [Shard("x.csv", 0)]}])
    def test_no_records_is_a_usage_error(self, found):
        w = self.registered()
        w.report_model()
        w.apply(DataScanned(found))
        assert w.outcome.exit_code == 2
