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
COUNTS = pb.TaskCounts(records=4, steps=2, damaged=1, nan_steps=1)
TENSORS = [pb.StateTensor(name="s", value=codec.to_proto(np.ones(2)), reduction="mean")]
STATES = [
    pb.MetricState(name="m", sum=1, records=4),
    pb.MetricState(name="o", object=True, records=4, tensors=TENSORS),
]
WRITTEN = pserver_pb2.Snapshot(
    files={"f": 1}, watermarks=pserver_pb2.Watermarks(retired_before=0), version=1
)
EMBEDDINGS = [pb.EmbeddingReport(name="e", num_embeddings=10, dim=4, dynamic=False)]
DATA = pb.ScriptData(records=100, epochs=2, batch_size=10, records_per_task=50, seed=1)


def requests(lease: int, ring: int) -> list[Any]:
    """Return a request of each kind that worker 0, server 1, torchrun or a user may send."""
    task = {"worker_id": 0, "lease_id": lease}
    at = {"worker_id": 0, "ring": ring}
    beat = {"steps": 2, "records": 4, "loss": 0.5, "position": 40, "pass_records": 80}
    return [
        pb.RegisterRequest(worker_id=0, pid=7, host="h", node="n"),
        pb.RegisterServerRequest(incarnation=1, address="s:1"),
        pb.ServerHeartbeatRequest(incarnation=1, version=3, problem="full"),
        pb.GetClusterRequest(shard=0, after=0),
        pb.ReportModelRequest(embeddings=EMBEDDINGS, shards=[pb.SourceShard(records=4)]),
        pb.ReportFailureRequest(error="e"),
        pb.WaitUntilReadyRequest(worker_id=0),
        pb.LeaseRequest(worker_id=0, want=1, incarnation=1, held=[]),
        pb.CompleteTaskRequest(**task, counts=COUNTS, metrics=pb.Metrics(states=STATES)),
        pb.CompleteTaskRequest(**task, counts=COUNTS, values=pb.MetricValues(values={"m": 1.0})),
        pb.CompleteTaskRequest(**task, counts=COUNTS, snapshot=WRITTEN),
        pb.ReleaseTaskRequest(**task),
        pb.FailTaskRequest(**task, counts=COUNTS, error="e"),
        pb.HeartbeatRequest(**at, **beat),
        pb.JoinRingRequest(**at, store="s:1"),
        pb.StandByRequest(**at, store="s:1", step=2),
        pb.LeaveRingRequest(worker_id=0),
        pb.LeaseSnapshotRequest(worker_id=0),
        pb.ReportCheckpointRequest(worker_id=0, directory="/ck/1"),
        pb.GetStatusRequest(),
        pb.GetStacksRequest(number=1),
        pb.ScaleRequest(min_workers=1, max_workers=2),
        pb.ReportDataRequest(data=DATA),
        pb.JoinRoundRequest(node="n", min_nodes=1, max_nodes=2, last_call_s=1, store="s"),
        pb.GetRoundRequest(node="n", round=1),
        pb.BeginPassRequest(worker_id=0, number=1, epochs=2),
        pb.MeetRequest(worker_id=0, passes=1, number=1),
        pb.LeaveRoundRequest(node="n"),
        pb.CloseRoundsRequest(),
    ]


class ServedJob:
    """The service of a job in which a worker holds a lease, or two workers train in a ring."""

    def __init__(self, kind: str, strategy: str) -> None:
        options: dict[str, Any] = {"strategy": strategy, "servers": 1, "dir": "/ck"}
        if kind == "script":
            w = script(**options)
            w.register(7)
            w.report_model(0)
            w.servers_up()
            if strategy == "ps":
                w.report_data(0)
        else:
            shards = [Shard("a", 40)]
            w = running(eval_records=4, eval_every=2, shards=shards, workers=2, **options)
        if strategy == "allreduce":
            w.register(8, local_rank=1)
            w.ring(0, 1)
            for worker in (0, 1):
                w.beat(worker, ring=1, position=8, steps=1)
        w.tick()
        answer = w.lease(0)
        self.w, self.job = w, w.job
        self.requests = requests(
            answer.leases[0].lease_id if answer and answer.leases else 0, w.job.ring.number
        )
        ticks = itertools.count(1)
        self.handlers = Service(
            w.job, clock=lambda: w.now + next(ticks) * 3.0, log_path=lambda role, id: "", cores=4
        ).handlers()

    def say(self, request: Any) -> Any:
        return self.handlers[type(request).__name__.removesuffix("Request")](request, CONTEXT)

    def goes_on(self) -> None:
        """Its state can be told, kept and continued; workers come and are answered."""
        self.w.tick()
        self.say(pb.GetStatusRequest())
        for process in self.job.fleet.alive("worker"):
            assert process.id < 100, "a flood of workers"
        self.say(pb.HeartbeatRequest(worker_id=0, steps=3, ring=self.job.ring.number))
        life = self.job.fleet.model.incarnation
        self.say(pb.LeaseRequest(worker_id=0, want=1, incarnation=life)).SerializeToString()
        to_state(self.job)
        self.w.tick()
        assert self.say(pb.GetStatusRequest()).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("train", "ps"), ("script", "ps"), ("script", "allreduce")],
)
def test_no_number_ends_or_poisons_a_job(kind: str, strategy: str) -> None:
    bad = []
    for plain in ServedJob(kind, strategy).requests:
        for what, request in variants(plain):
            job, name = ServedJob(kind, strategy), type(request).__name__
            try:
                job.say(request)
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
    job.say(request)
