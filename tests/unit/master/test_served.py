"""The job of a training script on parameter servers, in simulated time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from master.state.actions import CheckpointSaved, Flush, Saved, SaveServers, Start, Stop
from master.state.calls import Calls
from master.state.data_identity import identity
from master.state.fleet import Fleet
from master.state.job import Job
from master.state.restart import from_state, to_state
from master.state.status import describe
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, ClusterConfig, JobConfig, TrainConfig
from torch_edl.errors import UsageError
from torch_edl.processes.base import ProcessExit
from torch_edl.wire import master_pb2 as pb

LEASED, FINISHED = pb.LeaseResponse.LEASED, pb.LeaseResponse.FINISHED
CHANGED, DRAIN = pb.LeaseResponse.CLUSTER_CHANGED, pb.LeaseResponse.DRAIN
UNBOUND = pb.EmbeddingReport(name="rows", dim=4, dynamic=True)
SMALL = pb.EmbeddingReport(name="rows", num_embeddings=10, dim=4)
DATA = {"records": 100, "epochs": 2, "batch_size": 10, "records_per_task": 50}


class World:
    """One master of a script, the servers that it starts, and what workers and agents tell it."""

    def __init__(
        self,
        *,
        strategy: str = "auto",
        most: int = 2,
        servers: int = 2,
        checkpoints: bool = False,
        resumed: Saved | None = None,
        left: dict | None = None,
    ) -> None:
        self.config = JobConfig(
            name="j",
            kind="script",
            model_file="/train.py",
            train=TrainConfig(strategy=strategy),
            cluster=ClusterConfig(max_workers=most, servers=servers),
            checkpoint=CheckpointConfig(dir="/c") if checkpoints else CheckpointConfig(),
        )
        self.now = 0.0
        self.job = Job(
            self.config,
            Fleet("j", workers=most, servers=servers, external=True),
            folder=Path("/job"),
            resumed=resumed,
        )
        self.calls = Calls(self.job, cores=8)
        self.started: list[Start] = []
        self.stopped: list[Stop] = []
        self.effects: list = []
        if left is not None:
            from_state(self.job, left, self.now)
        self.job.start(self.now)
        self.tick()

    @property
    def outcome(self) -> Any:
        return self.job.lifecycle.outcome

    def tick(self, seconds: float = 0.1) -> None:
        self.now += seconds
        for action in self.job.tick(self.now):
            if isinstance(action, Start):
                self.started.append(action)
            elif isinstance(action, Stop):
                self.stopped.append(action)
            else:
                self.effects.append(action)

    def servers_up(self) -> None:
        """All servers of today say that they listen."""
        self.tick()
        life = self.job.fleet.incarnation
        for process in self.job.fleet.alive("ps"):
            if process.incarnation == life:
                request = pb.RegisterServerRequest(
                    shard=process.shard, incarnation=life, address=f"s{process.id}:1"
                )
                self.calls.register_server(request, self.now)

    def register(self, pid: int, local_rank: int = 0) -> int:
        request = pb.RegisterRequest(
            worker_id=-1, pid=pid, host="h", node="n", local_rank=local_rank
        )
        return self.calls.register(request, self.now).worker_id

    def report(self, worker: int, *embeddings: pb.EmbeddingReport, **fields):
        request = pb.ReportModelRequest(embeddings=embeddings, **fields)
        self.calls.report_model(request, self.now)
        return self.start(worker)

    def tell(self, worker: int, **changes):
        request = pb.ReportDataRequest(data=pb.ScriptData(**{**DATA, **changes}))
        self.calls.report_data(request, self.now)
        return self.start(worker)

    def start(self, worker: int) -> pb.Start | None:
        ask = pb.WaitUntilReadyRequest(worker_id=worker)
        answer = self.calls.wait_until_ready(ask, self.now)
        return answer.start if answer is not None and answer.HasField("start") else None

    def lease(self, worker: int, *held: int, life: int | None = None) -> pb.LeaseResponse | None:
        life = self.job.fleet.incarnation if life is None else life
        request = pb.LeaseRequest(worker_id=worker, want=1, incarnation=life, held=held)
        return self.calls.lease(request, self.now)

    def task(self, worker: int) -> pb.LeaseMessage:
        answer = self.lease(worker)
        assert answer is not None
        assert answer.next == LEASED
        return answer.leases[0]

    def done(self, worker: int, lease: pb.LeaseMessage) -> bool:
        counts = pb.TaskCounts(records=lease.end - lease.start)
        request = pb.CompleteTaskRequest(worker_id=worker, lease_id=lease.lease_id, counts=counts)
        return self.calls.complete_task(request, self.now).known

    def train_all(self, worker: int) -> None:
        while not self.job.tasks.trained:
            self.done(worker, self.task(worker))

    def save(self) -> Saved:
        """The checkpoint that is being asked for."""
        effect = next(e for e in self.effects if isinstance(e, SaveServers))
        self.effects.remove(effect)
        space = self.job.tasks.main.queue.space
        manifest = Manifest(
            job="j",
            strategy="ps",
            steps=space.steps_before(effect.progress.retired_before),
            shards=2,
            watermarks=effect.progress,
            data=identity(self.job.config, self.job.tasks.shards),
        )
        saved = Saved(Path(f"/c/step-{manifest.steps}"), manifest)
        self.job.apply(CheckpointSaved(saved, effect.incarnation), self.now)
        return saved

    def kill_server(self) -> None:
        server = next(
            p for p in self.job.fleet.alive("ps") if p.incarnation == self.job.fleet.incarnation
        )
        self.job.exited(
            ProcessExit(role="ps", id=server.id, code=None, signal=9), self.now, log="l"
        )

    def agent(self, **fields) -> pb.AgentReportResponse:
        fields.setdefault("workers", [pb.AgentWorker(pid=1)])
        request = pb.AgentReportRequest(node="n", pid=1, host="h", **fields)
        return self.calls.agent_report(request, self.now)

    def status(self) -> pb.GetStatusResponse:
        return describe(
            self.job,
            events_after=0,
            now=self.now,
            master=pb.ProcessStatus(role="master"),
            log_path=lambda role, id: "",
        )

    def texts(self) -> str:
        return "\n".join(e.text for e in self.job.lifecycle.log.after(0))


def begun(**options) -> World:
    """Servers are up, and one worker has told of its data."""
    w = World(strategy="ps", **options)
    w.agent()
    w.servers_up()
    worker = w.register(1)
    assert worker == 0
    assert w.report(worker, UNBOUND)
    assert w.tell(worker)
    return w


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
    assert list(answer.cluster.servers) == ["s0:1", "s1:1"]
    assert reason in answer.reason


def test_servers_that_were_asked_for_start_before_any_worker_is_there() -> None:
    w = World(strategy="ps", servers=3)
    assert len(w.started) == 3


def test_an_optimizer_that_servers_cannot_run_fails_the_job() -> None:
    w = World()
    w.report(w.register(1), UNBOUND, optimizer_error="servers cannot run LBFGS")
    assert w.outcome.exit_code == 2
    assert "LBFGS" in w.outcome.error


def test_a_checkpoint_of_another_strategy_is_refused() -> None:
    manifest = Manifest(job="j", strategy="allreduce", steps=5, shards=1)
    saved = Saved(Path("/c/5"), manifest)
    for strategy in ("ps", "auto"):
        w = World(strategy=strategy, checkpoints=True, resumed=saved)
        w.report(w.register(1) if w.outcome is None else 0, UNBOUND)
        assert w.outcome.usage_error
        assert "a checkpoint of the strategy allreduce" in w.outcome.error
        assert not w.started


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
    assert list(changed.cluster.servers) == ["s0:1", "s1:1"]
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
    ],
)
def test_other_data_are_the_error_of_the_worker_that_has_them(
    change: dict[str, int], text: str
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
    assert w.lease(0, second.lease_id) is None, "the servers start"
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


# ---- the end ----


def test_scripts_hear_of_the_end_once_the_model_is_saved() -> None:
    w = begun(checkpoints=True)
    w.train_all(0)
    w.tick()
    assert w.lease(0) is None, "the checkpoint is not written"
    saved = w.save()
    w.tick()
    assert w.lease(0).next == FINISHED
    assert w.outcome is None
    w.agent(done=True)
    assert w.outcome.state == "finished"
    w.tick()
    assert {(s.role, s.grace_s > 0) for s in w.stopped} == {("ps", True)}
    assert not w.job.lifecycle.over, "the servers still run"
    for process in w.job.fleet.alive("ps"):
        w.job.exited(ProcessExit(role="ps", id=process.id, code=0), w.now, log="l")
    w.agent(done=True)
    w.tick()
    assert w.job.lifecycle.over
    assert w.status().checkpoint == str(saved.path)


def test_a_worker_that_comes_after_the_end_hears_of_it() -> None:
    w = begun()
    w.train_all(0)
    w.tick()
    late = w.register(5, local_rank=1)
    assert w.report(late, UNBOUND)
    assert w.tell(late)
    assert w.lease(late, life=0).next == FINISHED


def test_a_script_that_leaves_its_loop_early_ends_the_job_with_what_it_has() -> None:
    w = begun(checkpoints=True)
    w.done(0, w.task(0))
    w.tick()
    w.agent(done=True)
    assert w.outcome is None, "the last checkpoint is not written"
    w.tick()
    assert w.save().manifest.watermarks.retired_before == 1
    w.tick()
    assert w.outcome.state == "finished"
    assert "the script left its loop with 3 tasks to do" in w.texts()


def test_a_script_that_never_begins_its_loader_ends_the_job() -> None:
    w = World(strategy="ps")
    w.agent()
    w.register(1)
    w.agent(done=True)
    assert w.outcome.state == "finished"


def test_a_server_lost_after_the_training_fails_a_job_without_checkpoints() -> None:
    w = begun()
    w.train_all(0)
    w.tick()
    assert w.lease(0).next == FINISHED
    w.kill_server()
    assert w.outcome.state == "failed"
    assert "--checkpoint-dir" in w.outcome.error


def test_a_server_lost_after_the_training_comes_back_with_the_last_checkpoint() -> None:
    w = begun(checkpoints=True)
    w.train_all(0)
    w.tick()
    saved = w.save()
    w.tick()
    w.kill_server()
    w.servers_up()
    assert w.started[-1].spec.args[-1] == str(saved.path)
    assert w.lease(0).next == FINISHED
    assert not [e for e in w.effects if isinstance(e, SaveServers | Flush)]
    w.agent(done=True)
    assert w.outcome.state == "finished"


def test_a_failed_job_lets_no_script_go_on_as_if_it_were_finished() -> None:
    w = begun()
    w.job.lifecycle.fail("disk on fire", w.now)
    assert w.lease(0).next == DRAIN


# ---- going on ----


def test_going_on_from_a_checkpoint_needs_the_same_data() -> None:
    first = begun(checkpoints=True)
    first.done(0, first.task(0))
    first.agent(done=True)
    first.tick()
    saved = first.save()
    second = begun(checkpoints=True, resumed=saved)
    assert second.task(0).task_id == 1
    assert second.started[0].spec.args[-1] == str(saved.path)
    third = World(strategy="ps", checkpoints=True, resumed=saved)
    third.servers_up()
    worker = third.register(1)
    third.report(worker, UNBOUND)
    third.tell(worker, shuffle=True)
    assert third.outcome.usage_error
    assert "made with shuffle=False, now it is shuffle=True" in third.outcome.error
    other = World(strategy="ps", checkpoints=True, resumed=saved)
    other.servers_up()
    other.report(other.register(1), UNBOUND)
    other.tell(0, files="another")
    assert "made with no data files, now it is data files another" in other.outcome.error


def test_a_master_that_was_killed_took_the_servers_with_it() -> None:
    w = begun()
    w.task(0)
    again = World(strategy="ps", left=json.loads(json.dumps(to_state(w.job))))
    assert again.outcome.state == "failed"
    assert "the master was killed, and the parameter servers with it" in again.outcome.error
    assert not again.started
    assert again.agent().error == again.outcome.error


def test_a_master_that_was_killed_before_the_strategy_was_known_decides_it() -> None:
    w = World()
    w.register(1)
    again = World(left=json.loads(json.dumps(to_state(w.job))))
    answer = again.report(0, SMALL)
    assert answer.strategy == "allreduce"
