"""The whole job in simulated time: no processes, no network."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from master.runtime.checkpoints import steps_of
from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    CommitLocal,
    DataScanned,
    Flush,
    Flushed,
    FolderMade,
    MakeFolder,
    OutputWritten,
    Prune,
    Saved,
    SaveServers,
    Start,
    Started,
    Stop,
    WriteOutput,
)
from master.state.calls import Calls
from master.state.data_identity import identity
from master.state.fleet import Fleet
from master.state.job import Job
from torch_edl.checkpoint.layout import step_dir
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    TrainConfig,
)
from torch_edl.data.task_space import Shard
from torch_edl.errors import UsageError
from torch_edl.processes.base import ProcessExit
from torch_edl.wire import master_pb2 as pb

SHARDS = [Shard("a", 20), Shard("b", 12)]

SNAPSHOT = {"snapshot": {"files": [{"name": "f", "size": 3}], "version": 9}}


class World:
    """Plays the processes, the disk and the clock for one job."""

    def __init__(
        self,
        *,
        kind: str = "train",
        workers: int = 1,
        servers: int = 2,
        strategy: str = "ps",
        mode: str = "async",
        epochs: int = 1,
        max_steps: int = 0,
        eval_every: int = 0,
        eval_records: int = 0,
        resumed: Saved | None = None,
        **checkpoint,
    ) -> None:
        self.config = JobConfig(
            name="j",
            kind=kind,
            model_file="/m.py",
            data=DataConfig(batch_size=2, records_per_task=4, epochs=epochs),
            train=TrainConfig(
                strategy=strategy, mode=mode, max_steps=max_steps, eval_every=eval_every
            ),
            cluster=ClusterConfig(
                max_workers=workers, servers=servers, heartbeat_timeout_s=10, task_timeout_s=60
            ),
            checkpoint=CheckpointConfig(**checkpoint),
        )
        self.now = 0.0
        fleet = Fleet("j", workers=workers, servers=servers)
        self.job = Job(self.config, fleet, folder=Path("/job"), resumed=resumed)
        self.calls = Calls(self.job, cores=8)
        self.eval_records = eval_records
        self.actions: list[object] = []
        self.counted: Counter[tuple[int, str, int]] = Counter()
        self.alive: set[int] = set()
        self.job.start(self.now)
        self.tick()

    @property
    def outcome(self) -> Any:
        return self.job.lifecycle.outcome

    def tick(self, seconds: float = 0.0) -> list[object]:
        """Lets time pass; processes that are started or stopped do so at once."""
        self.now += seconds
        actions = self.job.tick(self.now)
        for action in actions:
            if isinstance(action, Start):
                self.job.apply(Started(action.spec.role, action.spec.id, 1), self.now)
            elif isinstance(action, Stop):
                self.exit(action.role, action.id, signal=15)
            elif not isinstance(action, Prune):
                self.actions.append(action)
        return actions

    def exit(self, role: str, id: int, *, code: int | None = None, signal: int | None = None):
        self.alive.discard(id) if role == "worker" else None
        event = ProcessExit(role=role, id=id, code=code, signal=signal)
        self.job.exited(event, self.now, log=f"/{role}-{id}.log")

    def settle(self, type: type):
        """The one effect of a type that was asked for since the last time."""
        found = [a for a in self.actions if isinstance(a, type)]
        assert len(found) == 1, self.actions
        self.actions.remove(found[0])
        return found[0]

    def up(self) -> None:
        """Servers and workers that were started register, the model is told, the data counted."""
        self.tick()
        fleet = self.job.fleet
        for process in fleet.alive("ps"):
            if process.state == "starting":
                self.calls.register_server(
                    pb.RegisterServerRequest(
                        shard=process.shard,
                        incarnation=process.incarnation,
                        address=f"s{process.id}",
                    ),
                    self.now,
                )
        for process in fleet.alive("worker"):
            if process.state == "starting":
                self.calls.register(pb.RegisterRequest(worker_id=process.id), self.now)
                self.alive.add(process.id)
                self.report_model(process.id)
        if not self.job.tasks.ready:
            key = {"train": "train", "evaluate": "eval", "predict": "predict"}[self.config.kind]
            found = {key: SHARDS}
            if self.eval_records:
                found["eval"] = [Shard("test", self.eval_records)]
            self.job.apply(DataScanned(found), self.now)
        self.tick()

    def all_up(self) -> None:
        """Until every process that should run does."""
        for _ in range(3):
            self.up()

    def report_model(self, id: int, **fields):
        self.calls.report_model(pb.ReportModelRequest(**fields), self.now)
        ask = pb.WaitUntilReadyRequest(worker_id=id)
        answer = self.calls.wait_until_ready(ask, self.now)
        return answer.start if answer is not None and answer.HasField("start") else None

    def lease(self, id: int = 0, want: int = 1, held=()):
        return self.calls.lease(
            pb.LeaseRequest(
                worker_id=id, want=want, held=held, incarnation=self.job.fleet.incarnation
            ),
            self.now,
        )

    def complete(self, id: int, lease: pb.LeaseMessage, *, result=None, **counts) -> bool:
        counts = {"records": lease.end - lease.start - lease.offset, **counts}
        request = pb.CompleteTaskRequest(
            worker_id=id, lease_id=lease.lease_id, counts=counts, **(result or {})
        )
        return self.calls.complete_task(request, self.now).known

    def release(self, id: int, lease: pb.LeaseMessage) -> None:
        request = pb.ReleaseTaskRequest(worker_id=id, lease_id=lease.lease_id)
        self.calls.release_task(request, self.now)

    def fail(self, id: int, lease: pb.LeaseMessage, error: str, **fields) -> None:
        request = pb.FailTaskRequest(worker_id=id, lease_id=lease.lease_id, error=error, **fields)
        self.calls.fail_task(request, self.now)

    def do(self, id: int, lease: pb.LeaseMessage) -> None:
        """Does a task as a good worker would."""
        if lease.kind == pb.TASK_SNAPSHOT:
            assert self.complete(id, lease, result=SNAPSHOT)
            return
        result = None
        if lease.kind == pb.TASK_EVALUATE:
            state = pb.MetricState(name="loss", sum=1.0, records=lease.end - lease.start)
            result = {"metrics": {"states": [state]}}
        steps = -(-(lease.end - lease.start) // 2)
        if self.complete(id, lease, steps=steps, result=result) and lease.kind in (
            pb.TASK_TRAIN,
            pb.TASK_PREDICT,
        ):
            for i in range(lease.start, lease.end):
                self.counted[lease.epoch, lease.shard, i] += 1

    def work(self, tasks: int | None = None) -> None:
        """Every living worker does one task after the other."""
        count = 0
        for _ in range(10_000):
            busy = False
            for id in sorted(self.alive):
                answer = self.lease(id)
                if answer is None or answer.next != pb.LeaseResponse.LEASED:
                    continue
                for lease in answer.leases:
                    if tasks is not None and count >= tasks:
                        self.release(id, lease)
                        return
                    self.do(id, lease)
                    count += 1
                    busy = True
            self.tick(0.1)
            if not busy:
                return
        raise AssertionError("it never ends")

    def save(self) -> Saved:
        """The servers take the checkpoint that was asked for."""
        effect = self.settle(SaveServers)
        return self.saved(effect.progress, effect.incarnation)

    def saved(self, progress, incarnation: int) -> Saved:
        steps = steps_of(self.job.tasks.main.queue.space, progress)
        manifest = Manifest(
            job="j",
            strategy=self.job.fleet.strategy,
            steps=steps,
            shards=2,
            watermarks=progress,
            data=identity(self.config, SHARDS),
        )
        saved = Saved(step_dir(self.job.checkpoints.root, steps), manifest)
        self.job.apply(CheckpointSaved(saved, incarnation), self.now)
        return saved

    def leave(self) -> None:
        """All workers hear that it is over."""
        for id in sorted(self.alive):
            assert self.lease(id).next == pb.LeaseResponse.FINISHED
            self.exit("worker", id, code=0)
        for _ in range(3):
            self.tick(0.1)

    def texts(self, level: str | None = None) -> list[str]:
        return [e.text for e in self.job.lifecycle.log.after(0) if level in (None, e.level)]


def every_record(epochs: int = 1) -> Counter[tuple[int, str, int]]:
    return Counter((e, s.name, i) for e in range(epochs) for s in SHARDS for i in range(s.records))


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

    def test_sync_mode_flushes_before_the_last_evaluation_and_checkpoint(self):
        w = World(mode="sync", eval_records=4, dir="/ck")
        w.all_up()
        w.work()
        flush = w.settle(Flush)
        assert w.actions == []
        assert w.job.tasks.evaluations.streams() == []
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
        w.work(tasks=3)
        w.tick()
        folder = w.settle(MakeFolder)
        held = w.lease(0).leases[0]
        assert held.kind == pb.TASK_TRAIN
        w.job.apply(FolderMade(folder.directory, folder.incarnation), w.now)
        (lease,) = w.lease(0, held=[held.lease_id]).leases
        assert (lease.kind, lease.directory) == (pb.TASK_SNAPSHOT, str(folder.directory))
        w.do(0, held)  # after the snapshot began: it may not count as being in it
        watermarks = {"tasks": [{"task_id": held.task_id, "offset": 2}]}
        files = [{"name": "f", "size": 3}]
        written = {"files": files, "version": 6, "watermarks": watermarks}
        w.complete(0, lease, result={"snapshot": written})
        w.tick()
        commit = w.settle(CommitLocal)
        assert (commit.files, commit.version) == ({"f": 3}, 6)
        assert commit.progress.retired_before == 3
        assert commit.progress.offsets == {held.task_id: 2}


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

    def test_local_with_several_workers_is_refused_before_anything_starts(self):
        w = World(strategy="local", workers=2)
        assert w.job.fleet.alive() == []
        assert w.outcome.exit_code == 2
        assert "--workers 2: the strategy local runs one worker" in w.outcome.error
        assert w.job.lifecycle.over

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
        assert w.job.tasks.main.queue.space.total_records == 3

    @pytest.mark.parametrize("found", [{}, {"train": [Shard("x.csv", 0)]}])
    def test_no_records_is_a_usage_error(self, found):
        w = World(strategy="auto")
        w.calls.register(pb.RegisterRequest(worker_id=0), 0.0)
        w.report_model(0)
        w.job.apply(DataScanned(found), 0.0)
        assert w.outcome.exit_code == 2


class TestWorkers:
    def test_a_dead_workers_tasks_go_to_others(self):
        w = World(workers=2)
        w.all_up()
        first = w.lease(0, want=2).leases
        w.exit("worker", 0, signal=9)
        again = w.lease(1, want=2).leases
        assert [x.task_id for x in again] == [x.task_id for x in first]
        assert all(x.retried for x in again)
        assert not w.complete(0, first[0])

    def test_a_silent_worker_is_declared_lost_and_replaced(self):
        w = World()
        w.all_up()
        w.lease(0)
        w.tick(9.9)
        assert 0 in w.alive
        w.tick(0.1)
        assert 0 not in w.alive
        w.all_up()
        assert w.alive == {1}
        answer = w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
        assert (answer.known, answer.drain) == (False, True)
        with pytest.raises(UsageError):
            w.calls.register(pb.RegisterRequest(worker_id=0), w.now)

    def test_a_worker_that_makes_no_step_is_declared_lost_too(self):
        w = World()
        w.all_up()
        w.lease(0)
        for _ in range(59):
            w.tick(1.0)
            w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0, phase="training"), w.now)
            assert 0 in w.alive
        w.tick(2.0)
        assert 0 not in w.alive
        assert any("declared lost: no step for 60 s" in t for t in w.texts())

    def test_failures_of_the_users_code_are_limited(self):
        w = World(workers=2)
        w.all_up()
        for count in (1, 2, 3):
            (lease,) = w.lease(count % 2).leases
            assert lease.task_id == 0
            w.fail(count % 2, lease, "boom", traceback="tb")
            assert (w.outcome is None) == (count < 3)
        assert (w.outcome.error, w.outcome.traceback) == ("boom", "tb")
        assert w.outcome.exit_code == 1

    def test_a_fatal_failure_is_not_tried_again(self):
        w = World()
        w.all_up()
        w.fail(0, w.lease(0).leases[0], "NaN", fatal=True)
        assert w.outcome.error == "NaN"
        w.tick()
        w.tick()
        assert w.job.state == "failed"

    def test_releases_never_count(self):
        w = World()
        w.all_up()
        for _ in range(50):
            w.release(0, w.lease(0).leases[0])
        w.work()
        assert w.outcome.state == "finished"

    def test_scaling_down_drains_and_up_starts(self):
        w = World(workers=2)
        w.all_up()
        (lease,) = w.lease(1).leases
        w.job.scale(pb.ScaleRequest(min_workers=1, max_workers=1), w.now)
        w.tick()
        assert w.calls.heartbeat(pb.HeartbeatRequest(worker_id=1), w.now).drain
        assert w.lease(1, held=[lease.lease_id]).next == pb.LeaseResponse.DRAIN
        w.release(1, lease)
        w.exit("worker", 1, code=0)
        again = w.lease(0).leases[0]
        assert (again.task_id, again.retried) == (lease.task_id, True)
        w.job.scale(pb.ScaleRequest(min_workers=1, max_workers=3), w.now)
        w.all_up()
        assert w.alive == {0, 2, 3}

    def test_steps_are_never_counted_double(self):
        w = World(workers=2)
        w.all_up()
        (lease,) = w.lease(0).leases

        def beat(steps: int) -> tuple[int, int]:
            w.calls.heartbeat(
                pb.HeartbeatRequest(worker_id=0, steps=steps, records=2 * steps), w.now
            )
            return w.job.done()

        assert beat(1) == (2, 1)
        assert beat(2) == (4, 2)
        w.complete(0, lease, steps=2)
        assert w.job.done() == (4, 2)
        (lease,) = w.lease(0).leases
        assert w.job.done() == (4, 2)
        assert beat(2) == (4, 2)
        assert beat(3) == (6, 3)
        assert beat(99) == (8, 4)
        w.exit("worker", 0, signal=9)
        assert w.job.done() == (4, 2)

    def test_a_worker_of_old_servers_is_told_of_the_new(self):
        w = World()
        w.all_up()
        answer = w.calls.lease(pb.LeaseRequest(worker_id=0, want=1, incarnation=0), w.now)
        assert answer.next == pb.LeaseResponse.CLUSTER_CHANGED
        assert list(answer.cluster.servers) == ["s0", "s1"]


class TestGoingBack:
    def test_a_dead_server_takes_training_back_to_the_checkpoint(self):
        w = World(dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        saved = w.save()
        counted = w.counted.copy()
        w.work(tasks=2)
        assert w.job.done() == (16, 8)
        (lost,) = w.lease(0).leases
        w.actions.clear()
        w.exit("ps", 1, signal=9)
        assert w.job.done() == (8, 4)
        assert w.lease(0) is None
        assert not w.complete(0, lost)
        w.all_up()
        answer = w.calls.lease(pb.LeaseRequest(worker_id=0, want=1, incarnation=1), w.now)
        assert answer.next == pb.LeaseResponse.CLUSTER_CHANGED
        assert answer.cluster.incarnation == 2
        assert answer.cluster.restored_from == str(saved.path)
        w.counted = counted
        w.work()
        assert w.counted == every_record()

    def test_without_a_checkpoint_it_starts_over(self):
        w = World()
        w.all_up()
        w.work(tasks=3)
        w.exit("ps", 0, signal=9)
        assert w.job.done() == (0, 0)
        w.counted.clear()
        w.all_up()
        w.work()
        assert w.counted == every_record()
        assert w.outcome.state == "finished"

    def test_what_was_loaded_is_loaded_again(self):
        w = World(load="/pretrained")
        w.all_up()
        w.exit("ps", 0, signal=9)
        w.all_up()
        assert w.job.fleet.cluster().restored_from == "/pretrained"
        assert w.job.done() == (0, 0)

    def test_a_server_that_dies_in_the_last_evaluation(self):
        w = World(dir="/ck", eval_records=4)
        w.all_up()
        w.work()
        effect = w.settle(SaveServers)
        w.exit("ps", 0, signal=9)
        w.saved(effect.progress, effect.incarnation)  # of servers that are gone
        assert not w.job.checkpoints.complete
        w.all_up()
        w.counted.clear()
        w.work()
        assert w.counted == every_record()
        w.save()
        w.tick()
        assert w.outcome.state == "finished"

    def test_the_death_of_the_local_worker(self):
        w = World(strategy="local", dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        folder = w.settle(MakeFolder)
        w.job.apply(FolderMade(folder.directory, folder.incarnation), w.now)
        w.do(0, w.lease(0).leases[0])
        w.tick()
        commit = w.settle(CommitLocal)
        saved = w.saved(commit.progress, commit.incarnation)
        counted = w.counted.copy()
        w.work(tasks=3)
        w.exit("worker", 0, signal=9)
        w.counted = counted
        w.all_up()
        assert w.report_model(1).cluster.restored_from == str(saved.path)
        w.actions.clear()
        w.work()
        assert w.counted == every_record()

    def test_a_prediction_keeps_what_is_done(self):
        w = World(kind="predict", load="/m")
        w.all_up()
        w.work(tasks=3)
        w.exit("ps", 0, signal=9)
        w.all_up()
        w.work()
        assert w.counted == every_record()

    def test_resume_goes_on_and_refuses_other_data(self):
        w = World(dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        saved = w.save()
        rest = World(dir="/ck", resume=True, resumed=saved)
        rest.all_up()
        assert rest.job.done() == (8, 4)
        assert rest.job.fleet.cluster().restored_from == str(saved.path)
        rest.work()
        assert sum(rest.counted.values()) == 24
        manifest = dataclasses.replace(
            saved.manifest, data={**saved.manifest.data, "batch_size": 7}
        )
        other = World(dir="/ck", resume=True, resumed=Saved(saved.path, manifest))
        other.all_up()
        assert other.outcome.exit_code == 2
        assert "--batch-size 7, now it is 2" in other.outcome.error

    def test_a_resumed_job_that_was_complete_only_writes(self):
        w = World(dir="/ck")
        w.all_up()
        w.work()
        saved = w.save()
        again = World(dir="/ck", resume=True, resumed=saved, output="/out")
        again.all_up()
        assert again.settle(WriteOutput).checkpoint == saved.path
        assert again.actions == []
        (text,) = again.texts("warning")
        assert text.startswith("nothing is left to train")
        assert "raise --epochs to go on" in text


class TestLeftOut:
    """Minibatches that ``--on-nan skip`` left out."""

    def trained(self, nan: int) -> World:
        """16 minibatches, of which so many had no finite loss."""
        w = World()
        w.all_up()
        while (answer := w.lease()) is not None and answer.leases:
            for lease in answer.leases:
                steps = -(-(lease.end - lease.start) // 2)
                w.complete(0, lease, steps=steps, nan_steps=min(nan, steps))
                nan -= min(nan, steps)
        w.tick()
        return w

    def test_a_job_that_trained_on_nothing_has_failed(self):
        w = self.trained(nan=100)
        assert (w.outcome.state, w.outcome.exit_code) == ("failed", 1)
        assert "nothing was trained: none of the 16 minibatches" in w.outcome.error

    @pytest.mark.parametrize(("nan", "said"), [(1, 0), (2, 1), (11, 1)])
    def test_many_are_worth_a_word_at_the_end(self, nan, said):
        w = self.trained(nan)
        assert w.outcome.state == "finished"
        texts = [text for text in w.texts("warning") if "on-nan" in text]
        assert (
            texts
            == [f"--on-nan skip left {nan} of 16 minibatches out: their loss was not finite"] * said
        )

    def test_what_a_lost_worker_did_may_have_been_trained(self):
        w = World()
        w.all_up()
        lease = w.lease(0).leases[0]
        w.exit("worker", 0, signal=9)
        w.all_up()
        while (answer := w.lease(1)) is not None and answer.leases:
            for again in answer.leases:
                if again.task_id == lease.task_id:  # all of it is in the model
                    w.complete(1, again, records=0)
                else:
                    steps = -(-(again.end - again.start) // 2)
                    w.complete(1, again, steps=steps, nan_steps=steps)
        w.tick()
        assert w.outcome.state == "finished"


class TestTheEnd:
    def test_a_last_checkpoint_that_fails_three_times_fails_the_job(self):
        w = World(dir="/ck")
        w.all_up()
        w.work()
        for count in (1, 2, 3):
            assert w.outcome is None
            effect = w.settle(SaveServers)
            w.job.apply(CheckpointFailed("No space left on device", effect.incarnation), w.now)
            if count < 3:
                w.tick()
                assert w.actions == []
                w.tick(5.0)
                w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
        assert "No space left" in w.outcome.error

    def test_a_periodic_one_that_fails_is_tried_again_soon(self):
        w = World(dir="/ck", every=4)
        w.all_up()
        w.work(tasks=2)
        w.tick()
        w.job.apply(CheckpointFailed("disk", w.settle(SaveServers).incarnation), w.now)
        w.tick(5.0)
        w.settle(SaveServers)
        assert w.outcome is None

    def test_output_that_cannot_be_written_fails_the_job(self):
        w = World(output="/out")
        w.all_up()
        w.work()
        w.save()
        w.tick()
        w.settle(WriteOutput)
        w.job.apply(OutputWritten("read-only"), w.now)
        assert "--output /out" in w.outcome.error

    def test_stop_ends_everything_at_once(self):
        w = World(workers=2, dir="/ck")
        w.all_up()
        w.job.stop("SIGTERM", w.now)
        w.tick()
        w.tick()
        assert w.job.state == "stopped"
        assert w.job.fleet.alive() == []
        assert w.actions == []

    def test_a_stop_keeps_what_servers_hold(self):
        w = World(workers=2, mode="sync", eval_records=4, dir="/ck", output="/out")
        w.all_up()
        w.work(tasks=3)
        w.job.stop("SIGINT", w.now)
        w.tick()
        assert w.job.state == "stopping"
        assert w.lease(0).next == pb.LeaseResponse.DRAIN
        assert (w.actions, w.job.fleet.workers_wanted) == ([], 2)
        for worker in (0, 1):
            w.exit("worker", worker, code=0)
        w.tick()
        w.settle(Flush)
        w.job.apply(Flushed(1, success=True), w.now)
        w.tick()
        saved = w.save()
        for _ in range(3):
            w.tick()
        assert (w.job.state, w.outcome.error) == ("stopped", "SIGINT")
        assert w.job.done() == (12, saved.manifest.steps) == (12, 6)
        assert (w.actions, w.texts("warning")) == ([], ["stopping: SIGINT"])

    @pytest.mark.parametrize("strategy", ["local", "allreduce"])
    def test_a_worker_that_leaves_writes_the_model_that_only_it_has(self, strategy):
        w = World(strategy=strategy, dir="/ck")
        w.all_up()
        if strategy == "local":
            w.work(tasks=2)
        else:
            join = pb.JoinRingRequest(worker_id=0, store="s", step=-1)
            w.calls.join_ring(join, w.now)
            w.tick(1)
            beat = pb.HeartbeatRequest(worker_id=0, ring=1, position=8, steps=4)
            w.calls.heartbeat(beat, w.now)
        w.job.stop("SIGINT", w.now)
        w.tick()
        folder = w.settle(MakeFolder)
        ask = pb.LeaseSnapshotRequest(worker_id=0)
        assert w.calls.lease_snapshot(ask, w.now) is None, "it waits for the folder"
        w.job.apply(FolderMade(folder.directory, folder.incarnation), w.now)
        assert w.lease(0).next == pb.LeaseResponse.DRAIN, "it does not train on"
        lease = w.calls.lease_snapshot(ask, w.now).lease
        assert w.complete(0, lease, result=SNAPSHOT)
        w.exit("worker", 0, code=0)
        w.tick()
        commit = w.settle(CommitLocal)
        if strategy == "local":
            assert commit.progress.retired_before == 2
        w.saved(commit.progress, commit.incarnation)
        for _ in range(3):
            w.tick()
        assert w.job.state == "stopped"
        assert w.texts("warning") == ["stopping: SIGINT"]

    @pytest.mark.parametrize("how", ["hangs", "dies", "again"])
    def test_a_stop_does_not_wait_for_ever(self, how):
        w = World(strategy="local", dir="/ck")
        w.all_up()
        w.work(tasks=2)
        w.job.stop("SIGINT", w.now)
        w.tick()
        folder = w.settle(MakeFolder)
        w.job.apply(FolderMade(folder.directory, folder.incarnation), w.now)
        if how == "dies":
            w.exit("worker", 0, signal=9)
        elif how == "again":
            w.job.stop("SIGINT", w.now, at_once=True)
            assert [a.grace_s for a in w.tick()] == [0.0]
        else:
            for _ in range(20):
                w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0), w.now)
                w.tick(1)
        for _ in range(3):
            w.tick()
        assert (w.job.state, w.job.fleet.alive()) == ("stopped", [])
        last = {
            "hangs": "no last checkpoint: no worker came to the end of its step within 20 s",
            "dies": "no last checkpoint: no worker is left that has the model",
            "again": "stopping: SIGINT",
        }
        assert w.texts("warning")[-1] == last[how]

    def test_the_first_cause_counts(self):
        w = World()
        w.all_up()
        w.job.lifecycle.fail("first", w.now)
        w.job.lifecycle.fail("second", w.now)
        w.job.stop("later", w.now)
        assert w.outcome.error == "first"

    def test_a_crash_loop_fails_the_job(self):
        w = World()
        for _ in range(5):
            w.tick(60.0)
            process = w.job.fleet.alive("worker")[0]
            w.exit("worker", process.id, code=1)
        assert "exit code 1" in w.outcome.error
        assert f"/worker-{process.id}.log" in w.outcome.error


@pytest.mark.parametrize("seed", range(20))
def test_storm(seed):
    """Workers die, hang, lie low and release; servers die; every record counts once."""
    rng = random.Random(seed)
    w = World(
        workers=3, epochs=2, eval_records=6, eval_every=rng.choice([0, 7]), dir="/ck", every=6
    )
    w.all_up()
    taken: list[tuple[int, pb.LeaseMessage]] = []
    counted = Counter()
    for _ in range(5000):
        if w.outcome is not None:
            break
        action = rng.random()
        if w.alive and action < 0.6:
            id = rng.choice(sorted(w.alive))
            held = [x.lease_id for owner, x in taken if owner == id]
            answer = w.lease(id, want=2, held=held)
            if answer is not None:
                taken += [(id, x) for x in answer.leases]
            w.calls.heartbeat(pb.HeartbeatRequest(worker_id=id), w.now)
        elif taken and action < 0.9:
            id, lease = taken.pop(rng.randrange(len(taken)))
            if id in w.alive:
                w.do(id, lease)
        elif taken and action < 0.93:
            id, lease = taken.pop(rng.randrange(len(taken)))
            if id in w.alive:
                w.release(id, lease)
        elif w.alive and action < 0.95:
            id = rng.choice(sorted(w.alive))
            w.exit("worker", id, signal=9)
        elif action < 0.955:
            servers = [p.id for p in w.job.fleet.alive("ps") if p.state == "running"]
            if servers:
                w.exit("ps", rng.choice(servers), signal=9)
                w.counted = counted.copy()
                w.actions.clear()
        for effect in [a for a in w.actions if isinstance(a, SaveServers)]:
            # The cut of the servers is what is done now.
            w.actions.remove(effect)
            w.saved(w.job.tasks.main.queue.progress(), effect.incarnation)
            counted = w.counted.copy()
        w.tick(rng.random())
        w.all_up()
    assert w.outcome is not None, "it never ended"
    assert w.outcome.state == "finished", w.outcome
    assert w.counted == every_record(2)
    assert w.job.tasks.evaluations.results[-1].metrics == {"loss": 2 / 6}
