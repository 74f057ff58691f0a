"""A model file under the strategy allreduce, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from master.state.actions import (
    CheckpointSaved,
    CommitLocal,
    DataScanned,
    Prune,
    Saved,
    Start,
    Started,
    Stop,
)
from master.state.calls.calls import Calls
from master.state.calls.user_calls import UserCalls
from master.state.job.job import Job
from master.state.work.tasks import steps_of
from master.state.workforce.fleet import Fleet
from master.state.workforce.server_command import ServerCommand
from torch_edl.checkpoint.layout import step_dir
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, ClusterConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.data.resuming import identity
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.processes.spec import ProcessExit
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps

SHARDS = [Shard("a", 20), Shard("b", 11)]


class World:
    """Plays processes and disk; every worker that lives asks into the ring and trains in it."""

    def __init__(
        self,
        *,
        workers: int = 2,
        epochs: int = 1,
        eval_records: int = 0,
        strategy: str = "allreduce",
        resumed: Saved | None = None,
        **checkpoint,
    ) -> None:
        self.config = JobConfig(
            name="j",
            model_file="/m.py",
            data=DataConfig(batch_size=2, records_per_task=4, epochs=epochs),
            train=TrainConfig(strategy=strategy),
            cluster=ClusterConfig(max_workers=workers, heartbeat_timeout_s=10),
            checkpoint=CheckpointConfig(**checkpoint),
        )
        self.now = 0.0
        fleet = Fleet(ServerCommand(job="j"), workers=workers, servers=1)
        self.job = Job(self.config, fleet, folder=Path("/job"), resumed=resumed)
        self.calls = Calls(self.job, cores=8)
        self.user_calls = UserCalls(self.job)
        self.eval_records = eval_records
        self.effects: list[object] = []
        self.ring: dict[int, int] = {}  # worker -> the ring that it is in
        self.job.start(0.0)
        self.tick()

    @property
    def outcome(self) -> Any:
        return self.job.lifecycle.outcome

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for action in self.job.tick(self.now):
            if isinstance(action, Start):
                self.job.apply(Started(action.spec.role, action.spec.id, 1), self.now)
            elif isinstance(action, Stop):
                self.exit(action.id)
            elif not isinstance(action, Prune):
                self.effects.append(action)

    def exit(self, id: int, signal: int = 9) -> None:
        self.ring.pop(id, None)
        self.job.exited(
            ProcessExit(role="worker", id=id, code=None, signal=signal), self.now, log="/l"
        )

    def up(self) -> pb.Start | None:
        """Workers that were started come as far as the ring; what they begin with."""
        self.tick()
        for process in self.job.fleet.alive("worker"):
            if process.state == "starting":
                self.calls.register(pb.RegisterRequest(worker_id=process.id), self.now)
                self.ring[process.id] = 0
        if not self.job.tasks.ready:
            self.calls.report_model(pb.ReportModelRequest(), self.now)
            found = {"train": SHARDS}
            if self.eval_records:
                found["eval"] = [Shard("test", self.eval_records)]
            self.job.apply(DataScanned(found), self.now)
        ask = pb.WaitUntilReadyRequest(worker_id=min(self.ring))
        answer = self.calls.wait_until_ready(ask, self.now)
        return answer.start if answer is not None and answer.HasField("start") else None

    def meet(self, step: int = -1) -> pb.JoinRingResponse:
        """All that live ask, those without a ring having no model."""
        ring = self.job.ring.ring
        for _ in range(5):
            for id, was in sorted(self.ring.items()):
                if was < ring.number or was == 0 or ring.stale() or ring.broken(self.now):
                    answer = self.join(id, was, step if was else -1)
                    self.ring[id] = answer.ring.number if answer is not None else was
            self.tick(0.6)
        assert set(self.ring.values()) == {ring.number}
        return self.join(min(self.ring), 0, -1)

    def join(self, id: int, ring: int, step: int) -> pb.JoinRingResponse | None:
        request = pb.JoinRingRequest(worker_id=id, ring=ring, step=step, store=f"s{id}")
        return self.calls.join_ring(request, self.now)

    def at(self, position: int, *ids: int, ring: int | None = None) -> pb.HeartbeatResponse:
        """These members (all) have so many records in their model."""
        for id in ids or sorted(self.ring):
            request = pb.HeartbeatRequest(
                worker_id=id,
                loss=1.0,
                steps=position,
                position=position,
                ring=self.ring[id] if ring is None else ring,
            )
            answer = self.calls.heartbeat(request, self.now)
        self.tick(0.1)
        return answer

    def left_out(self, records: int, position: int) -> None:
        """A member tells how many records gave no gradient."""
        request = pb.HeartbeatRequest(
            worker_id=0, position=position, left_out=records, ring=self.ring[0]
        )
        self.calls.heartbeat(request, self.now)

    def lease(self, id: int) -> pb.LeaseResponse | None:
        request = pb.LeaseRequest(
            worker_id=id, want=1, incarnation=self.job.fleet.incarnation, held=()
        )
        return self.calls.lease(request, self.now)

    def done(self, id: int, lease: pb.LeaseMessage, **fields) -> bool:
        counts = pb.TaskCounts(records=lease.end - lease.start)
        request = pb.CompleteTaskRequest(
            worker_id=id, lease_id=lease.lease_id, counts=counts, **fields
        )
        return self.calls.complete_task(request, self.now).known

    def effect(self, type: type):
        found = [e for e in self.effects if isinstance(e, type)]
        assert len(found) == 1, self.effects
        self.effects.remove(found[0])
        return found[0]

    def checkpoint(self, id: int, position: int) -> Saved:
        """The checkpoint that was asked for, written by a worker that is at ``position``."""
        lease = self.lease(id).leases[0]
        assert lease.kind == pb.TASK_SNAPSHOT
        task = position // 4
        watermarks = {"retired_before": task, "tasks": [{"task_id": task, "offset": position % 4}]}
        written = ps.Snapshot(files={"f": 1}, watermarks=watermarks, version=3)
        assert self.done(id, lease, snapshot=written)
        self.tick()
        commit = self.effect(CommitLocal)
        saved = made_from(self.config, commit.manifest.watermarks)
        self.job.apply(CheckpointSaved(saved, commit.incarnation), self.now)
        return saved


def made_from(config: JobConfig, progress: Watermarks) -> Saved:
    space = TaskSpace(SHARDS, 4, batch_size=2, shuffle=True)
    steps = steps_of(space, progress)
    manifest = Manifest(
        job="j",
        strategy="allreduce",
        steps=steps,
        shards=1,
        watermarks=progress,
        data=identity(config, SHARDS),
    )
    return Saved(step_dir("/ck", steps), manifest)
