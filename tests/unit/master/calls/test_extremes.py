"""Each number of each request, at its extremes: refused by name, or taken; the job continues."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from master.runtime.service import Service
from master.state.actions import DataScanned
from master.state.job.job import Job
from master.state.job.restart import to_state
from master.state.scripts.script_fleet import ScriptFleet
from master.state.workforce.fleet import Fleet
from master.state.workforce.server_command import ServerCommand
from tests.unit.wire.extremes import variants
from torch_edl.config import CheckpointConfig, ClusterConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.data.sources import open_source
from torch_edl.data.task_space import Shard
from torch_edl.errors import UsageError
from torch_edl.wire import codec, pserver_pb2
from torch_edl.wire import master_pb2 as pb

# A call that waits sees its deadline pass at once.
CONTEXT = SimpleNamespace(is_active=lambda: True)
METRIC = pb.MetricState(name="m", sum=1, records=4)
OBJECT = pb.MetricState(
    name="o",
    object=True,
    records=4,
    tensors=[pb.StateTensor(name="s", value=codec.to_proto(np.ones(2)), reduction="mean")],
)
DATA = pb.ScriptData(records=100, epochs=2, batch_size=10, records_per_task=50, seed=1)


class World:
    """A master's service without its processes."""

    def __init__(self, kind: str, strategy: str) -> None:
        config = JobConfig(
            name="j",
            kind=kind,
            model_file="/m.py",
            data=DataConfig(batch_size=2, records_per_task=4, eval=("eval.csv",)),
            train=TrainConfig(strategy=strategy, eval_every=2),
            cluster=ClusterConfig(max_workers=2, servers=1),
            checkpoint=CheckpointConfig(dir="/ck"),
        )
        script = kind == "script"
        fleet = (ScriptFleet if script else Fleet)(ServerCommand(job="j"), workers=2, servers=1)
        self.job = Job(config, fleet, folder=Path("/job"))
        ticks = itertools.count(1)
        self.service = Service(
            self.job, clock=lambda: next(ticks) * 3.0, log_path=lambda role, id: "", cores=4
        )
        self.handlers = self.service.handlers()
        self.job.start(0.0)
        self.tick()
        if not script:
            self.job.apply(DataScanned({"train": [Shard("a", 40)], "eval": [Shard("e", 4)]}), 0.0)
        self.script = script
        self.worker = self.say("Register", self.requests()["Register"]).worker_id
        self.say("ReportModel", pb.ReportModelRequest())
        self.tick()
        for process in self.job.fleet.alive("ps"):
            request = pb.RegisterServerRequest(incarnation=process.incarnation, address="s:1")
            self.say("RegisterServer", request)
        if script and strategy == "ps":
            self.say("ReportData", pb.ReportDataRequest(data=DATA))
        if strategy == "allreduce":
            self.form_ring()
        self.tick()
        leased = self.say("Lease", self.requests()["Lease"]).leases
        self.lease = leased[0].lease_id if leased else 0

    def tick(self) -> None:
        for action in self.job.tick(0.0):
            if hasattr(action, "spec"):
                self.job.fleet.started(action.spec.role, action.spec.id, 1)

    def form_ring(self) -> None:
        """Of two workers, which go through the data."""
        id = -1 if self.script else 1
        request = pb.RegisterRequest(worker_id=id, pid=8, host="h", node="n", local_rank=1)
        other = self.say("Register", request).worker_id
        self.say("ReportModel", pb.ReportModelRequest())
        for worker in (self.worker, other, self.worker):
            answer = self.say("JoinRing", pb.JoinRingRequest(worker_id=worker, store="s", step=-1))
        assert answer.HasField("ring")
        self.ring = answer.ring.number
        for worker in (self.worker, other):
            beat = pb.HeartbeatRequest(worker_id=worker, ring=self.ring, position=8, steps=1)
            self.say("Heartbeat", beat)

    def say(self, method: str, request: Any) -> Any:
        return self.handlers[method](request, CONTEXT)

    def requests(self) -> dict[str, Any]:
        worker = getattr(self, "worker", -1 if self.script else 0)
        life, ring = self.job.fleet.model.incarnation, getattr(self, "ring", 0)
        task = {"worker_id": worker, "lease_id": getattr(self, "lease", 0)}
        counts = pb.TaskCounts(records=4, steps=2, damaged=1, nan_steps=1)
        written = pserver_pb2.Snapshot(
            files={"f": 1}, watermarks=pserver_pb2.Watermarks(retired_before=0), version=1
        )
        results: dict[str, Any] = {
            "metrics": pb.Metrics(states=[METRIC, OBJECT]),
            "values": pb.MetricValues(values={"m": 1.0}),
            "snapshot": written,
        }
        embedding = pb.EmbeddingReport(name="e", num_embeddings=10, dim=4, dynamic=False)
        agent = pb.AgentReportRequest(
            node="n", pid=5, host="h", workers=[pb.AgentWorker(pid=7, exited=True, code=1)]
        )
        requests: dict[str, Any] = {
            "Register": pb.RegisterRequest(worker_id=worker, pid=7, host="h", node="n"),
            "RegisterServer": pb.RegisterServerRequest(incarnation=1, address="s:1"),
            "ServerHeartbeat": pb.ServerHeartbeatRequest(incarnation=1, version=3, problem="full"),
            "GetCluster": pb.GetClusterRequest(shard=0, after=0),
            "ReportModel": pb.ReportModelRequest(
                embeddings=[embedding], shards=[pb.SourceShard(records=4)]
            ),
            "ReportFailure": pb.ReportFailureRequest(error="e"),
            "WaitUntilReady": pb.WaitUntilReadyRequest(worker_id=worker),
            "Lease": pb.LeaseRequest(worker_id=worker, want=1, incarnation=life, held=[]),
            **{
                f"CompleteTask {name}": pb.CompleteTaskRequest(
                    **task, counts=counts, **{name: value}
                )
                for name, value in results.items()
            },
            "ReleaseTask": pb.ReleaseTaskRequest(**task),
            "FailTask": pb.FailTaskRequest(**task, counts=counts, error="e"),
            "Heartbeat": pb.HeartbeatRequest(
                worker_id=worker,
                steps=2,
                records=4,
                loss=0.5,
                position=40,
                pass_records=80,
                ring=ring,
            ),
            "JoinRing": pb.JoinRingRequest(worker_id=worker, ring=ring, store="s:1"),
            "StandBy": pb.StandByRequest(worker_id=worker, ring=ring, store="s:1", step=2),
            "LeaveRing": pb.LeaveRingRequest(worker_id=worker),
            "LeaseSnapshot": pb.LeaseSnapshotRequest(worker_id=worker),
            "ReportCheckpoint": pb.ReportCheckpointRequest(worker_id=worker, directory="/ck/1"),
            "GetStatus": pb.GetStatusRequest(),
            "GetStacks": pb.GetStacksRequest(number=1),
            "Scale": pb.ScaleRequest(min_workers=1, max_workers=2),
        }
        if self.script:
            requests["ReportData"] = pb.ReportDataRequest(data=DATA)
            requests["AgentReport"] = agent
            requests["JoinRound"] = pb.JoinRoundRequest(
                node="n", min_nodes=1, max_nodes=2, last_call_s=1, store="s"
            )
            requests["GetRound"] = pb.GetRoundRequest(node="n", round=1)
            requests["BeginPass"] = pb.BeginPassRequest(worker_id=worker, number=1, epochs=2)
            requests["Meet"] = pb.MeetRequest(worker_id=worker, passes=1, number=1)
            requests["LeaveRound"] = pb.LeaveRoundRequest(node="n")
            requests["CloseRounds"] = pb.CloseRoundsRequest()
        return requests

    def goes_on(self) -> None:
        """Its state can be told, kept and continued; workers come and are answered."""
        self.tick()
        self.say("GetStatus", pb.GetStatusRequest())
        for process in self.job.fleet.alive("worker"):
            assert process.id < 100, "a flood of workers"
        worker = self.worker
        self.say(
            "Heartbeat",
            pb.HeartbeatRequest(worker_id=worker, steps=3, ring=getattr(self, "ring", 0)),
        )
        lease = pb.LeaseRequest(
            worker_id=worker, want=1, incarnation=self.job.fleet.model.incarnation
        )
        answer = self.say("Lease", lease)
        answer.SerializeToString()
        to_state(self.job)
        self.tick()
        assert self.say("GetStatus", pb.GetStatusRequest()).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("train", "ps"), ("script", "ps"), ("script", "allreduce")],
)
def test_no_number_ends_or_poisons_a_job(kind: str, strategy: str) -> None:
    bad = []
    for name in World(kind, strategy).requests():
        for what, request in variants(World(kind, strategy).requests()[name]):
            world = World(kind, strategy)
            try:
                world.say(name.split()[0], request)
            except UsageError:
                pass
            except Exception as error:
                bad.append(f"{name}, {what}: {error!r}")
            try:
                world.goes_on()
            except Exception as error:
                bad.append(f"after {name}, {what}: {error!r}")
    assert not bad, "\n".join(bad)


def test_a_source_of_a_file_says_when_that_was_changed(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a\n1\n")
    shard = Shard.of(open_source(str(file)))
    world = World("train", "ps")
    request = pb.ReportModelRequest(shards=[pb.SourceShard(**dataclasses.asdict(shard))])
    assert shard.mtime_ns > 1 << 53
    world.say("ReportModel", request)
