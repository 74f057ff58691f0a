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
from master.state.job.restart import to_state
from tests.unit.master.script_jobs import script
from tests.unit.master.world import running
from tests.unit.wire.extremes import variants
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


class ServedJob:
    """The service of a job in which a worker holds a lease, or two workers train in a ring."""

    def __init__(self, kind: str, strategy: str) -> None:
        self.script = kind == "script"
        options: dict[str, Any] = {"strategy": strategy, "servers": 1, "dir": "/ck"}
        if self.script:
            w = script(**options)
            w.register(7)
            w.report_model(0)
            w.servers_up()
        else:
            shards = [Shard("a", 40)]
            w = running(eval_records=4, eval_every=2, shards=shards, workers=2, **options)
        if self.script and strategy == "ps":
            w.report_data(0)
        if strategy == "allreduce":
            w.register(8, local_rank=1)
            w.ring(0, 1)
            for worker in (0, 1):
                w.beat(worker, ring=1, position=8, steps=1)
        w.tick()
        answer = w.lease(0)
        self.lease = answer.leases[0].lease_id if answer and answer.leases else 0
        self.ring = w.job.ring.number
        self.w, self.job = w, w.job
        ticks = itertools.count(1)
        self.handlers = Service(
            w.job, clock=lambda: w.now + next(ticks) * 3.0, log_path=lambda role, id: "", cores=4
        ).handlers()

    def say(self, method: str, request: Any) -> Any:
        return self.handlers[method](request, CONTEXT)

    def requests(self) -> dict[str, Any]:
        worker = 0
        life, ring = self.job.fleet.model.incarnation, self.ring
        task = {"worker_id": worker, "lease_id": self.lease}
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
        self.w.tick()
        self.say("GetStatus", pb.GetStatusRequest())
        for process in self.job.fleet.alive("worker"):
            assert process.id < 100, "a flood of workers"
        worker = 0
        self.say("Heartbeat", pb.HeartbeatRequest(worker_id=worker, steps=3, ring=self.ring))
        lease = pb.LeaseRequest(
            worker_id=worker, want=1, incarnation=self.job.fleet.model.incarnation
        )
        answer = self.say("Lease", lease)
        answer.SerializeToString()
        to_state(self.job)
        self.w.tick()
        assert self.say("GetStatus", pb.GetStatusRequest()).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("train", "ps"), ("script", "ps"), ("script", "allreduce")],
)
def test_no_number_ends_or_poisons_a_job(kind: str, strategy: str) -> None:
    bad = []
    for name in ServedJob(kind, strategy).requests():
        for what, request in variants(ServedJob(kind, strategy).requests()[name]):
            job = ServedJob(kind, strategy)
            try:
                job.say(name.split()[0], request)
            except UsageError:
                pass
            except Exception as error:
                bad.append(f"{name}, {what}: {error!r}")
            try:
                job.goes_on()
            except Exception as error:
                bad.append(f"after {name}, {what}: {error!r}")
    assert not bad, "\n".join(bad)


def test_a_source_of_a_file_says_when_that_was_changed(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a\n1\n")
    shard = Shard.of(open_source(str(file)))
    job = ServedJob("train", "ps")
    request = pb.ReportModelRequest(shards=[pb.SourceShard(**dataclasses.asdict(shard))])
    assert shard.mtime_ns > 1 << 53
    job.say("ReportModel", request)
