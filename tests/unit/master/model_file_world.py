"""A job of a model file in simulated time: no processes, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from master.state.actions import (
    CheckpointSaved,
    DataScanned,
    Prune,
    Saved,
    SaveServers,
    Start,
    Started,
    Stop,
)
from master.state.calls.calls import Calls
from master.state.calls.server_calls import ServerCalls
from master.state.calls.user_calls import UserCalls
from master.state.job.job import Job
from master.state.job.restart import from_state
from master.state.work.tasks import steps_of
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import RUNNING, Process
from master.state.workforce.server_command import ServerCommand
from torch_edl.checkpoint.layout import step_dir
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    DurabilityConfig,
    JobConfig,
    KubernetesConfig,
    TrainConfig,
)
from torch_edl.data.resuming import identity
from torch_edl.data.task_space import Shard
from torch_edl.processes.spec import ProcessExit
from torch_edl.wire import master_pb2 as pb

SHARDS = [Shard("a", 20), Shard("b", 12)]

EMPTY: Mapping[str, float] = {}
SNAPSHOT = {"snapshot": {"files": {"f": 3}, "version": 9}}


class World:
    """Plays the processes, the disk and the clock for one job."""

    def __init__(
        self,
        *,
        kind: str = "train",
        workers: int = 1,
        servers: int = 2,
        spares: int = 0,
        strategy: str = "ps",
        mode: str = "async",
        epochs: int = 1,
        max_steps: int = 0,
        eval_every: int = 0,
        eval_records: int = 0,
        resumed: Saved | None = None,
        durability: Mapping[str, str] | None = None,
        left: dict[str, Any] | None = None,
        now: float = 0.0,
        asks: bool = False,
        preprocessing: bytes = b"",
        early_stop: str = "",
        keep_best: str = "",
        evaluated: Iterable[Saved] = (),
        **checkpoint,
    ) -> None:
        self.config = JobConfig(
            name="j",
            kind=kind,
            model_file="/m.py",
            data=DataConfig(
                batch_size=2,
                records_per_task=4,
                epochs=epochs,
                eval=("eval.csv",) if eval_records else (),
            ),
            train=TrainConfig(
                strategy=strategy,
                mode=mode,
                max_steps=max_steps,
                eval_every=eval_every,
                early_stop=early_stop,
                keep_best=keep_best,
            ),
            cluster=ClusterConfig(
                max_workers=workers, servers=servers, heartbeat_timeout_s=10, task_timeout_s=60
            ),
            checkpoint=CheckpointConfig(**checkpoint),
            durability=DurabilityConfig(**(durability or {})),
            platform="kubernetes" if asks else "local",
            kubernetes=KubernetesConfig(image="edl" if asks else ""),
        )
        self.now = now
        fleet = Fleet(
            ServerCommand(job="j"), workers=workers, servers=servers, spares=spares, asks=asks
        )
        self.job = Job(
            self.config,
            fleet,
            folder=Path("/job"),
            resumed=resumed,
            evaluated=evaluated,
            preprocessing=preprocessing,
        )
        self.calls = Calls(self.job, cores=8)
        self.user_calls = UserCalls(self.job)
        self.servers = ServerCalls(self.job)
        self.silent: set[int] = set()
        """Servers that send no heartbeat."""
        self._keepers: dict[int, int] = {}
        self.eval_records = eval_records
        self.loss_sum = 1.0
        """Loss that each task of an evaluation finds, summed over its records."""
        self.actions: list[object] = []
        self.counted: Counter[tuple[int, str, int]] = Counter()
        self.alive: set[int] = set()
        if left is not None:
            from_state(self.job, left, self.now)
        self.job.start(self.now)
        self.tick()

    @property
    def outcome(self) -> Any:
        return self.job.lifecycle.outcome

    def tick(self, seconds: float = 0.0) -> list[object]:
        """Lets time pass; processes that are started or stopped do so at once."""
        self.now += seconds
        for process in self.job.fleet.servers:
            if process.id not in self.silent:
                self.beat(process)
        actions = self.job.tick(self.now)
        for action in actions:
            if isinstance(action, Start):
                self.job.apply(Started(action.spec.role, action.spec.id, 1), self.now)
            elif isinstance(action, Stop):
                self.exit(action.role, action.id, signal=15)
            elif not isinstance(action, Prune):
                self.actions.append(action)
        return actions

    def beat(self, process: Process, **fields: Any) -> pb.ServerHeartbeatResponse:
        """A heartbeat of a server, which has a copy at its peer since its heartbeat before."""
        request = pb.ServerHeartbeatRequest(
            shard=process.shard,
            incarnation=process.incarnation,
            keeper=(keeper := self._keepers.get(process.incarnation, 0)),
            note=1 if keeper else 0,
            has_copy=True,
            **fields,
        )
        answer = self.servers.heartbeat(request, self.now)
        if process.state == RUNNING and self.config.durability.mode == "replica":
            self._keepers[process.incarnation] = answer.peer.incarnation
        return answer

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
                self.servers.register(
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

    def lease(self, id: int = 0, want: int = 1, held=(), ahead: int = 0):
        request = pb.LeaseRequest(
            worker_id=id,
            want=want,
            ahead=ahead,
            held=held,
            incarnation=self.job.fleet.incarnation,
        )
        return self.calls.lease(request, self.now)

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
            records = lease.end - lease.start
            state = pb.MetricState(name="loss", sum=self.loss_sum, records=records)
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
        return self.saved(effect.progress, effect.incarnation, effect.manifest.metrics)

    def saved(self, progress, incarnation: int, metrics: Mapping[str, float] = EMPTY) -> Saved:
        saved = self.made(progress, metrics)
        self.job.apply(CheckpointSaved(saved, incarnation), self.now)
        return saved

    def made(self, progress, metrics: Mapping[str, float] = EMPTY) -> Saved:
        """A checkpoint."""
        steps = steps_of(self.job.tasks.main.space, progress)
        manifest = Manifest(
            job="j",
            strategy=self.job.fleet.strategy,
            steps=steps,
            shards=2,
            watermarks=progress,
            metrics=dict(metrics),
            data=identity(self.config, SHARDS),
        )
        return Saved(step_dir(self.job.checkpoints.root, steps), manifest)

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
