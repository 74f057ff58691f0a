"""The job of a training script on parameter servers, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from master.state.actions import CheckpointSaved, Saved, SaveServers, Start, Stop
from master.state.calls.agent_calls import AgentCalls
from master.state.calls.calls import Calls
from master.state.calls.server_calls import ServerCalls
from master.state.calls.user_calls import UserCalls
from master.state.job.job import Job
from master.state.job.restart import from_state
from master.state.job.status import describe
from master.state.scripts.script_fleet import ScriptFleet
from master.state.workforce.server_command import ServerCommand
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, ClusterConfig, JobConfig, TrainConfig
from torch_edl.data.resuming import identity
from torch_edl.processes.spec import ProcessExit
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
            ScriptFleet(ServerCommand(job="j"), workers=most, servers=servers),
            folder=Path("/job"),
            resumed=resumed,
        )
        self.calls = Calls(self.job, cores=8)
        self.user_calls = UserCalls(self.job)
        self.agent_calls = AgentCalls(self.job)
        self.servers = ServerCalls(self.job)
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
        for process in self.job.fleet.servers:
            request = pb.ServerHeartbeatRequest(
                shard=process.shard, incarnation=process.incarnation
            )
            self.servers.heartbeat(request, self.now)
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
        for process in self.job.fleet.alive("ps"):
            if process.state == "starting":
                request = pb.RegisterServerRequest(
                    shard=process.shard,
                    incarnation=process.incarnation,
                    address=f"s{process.id}:1",
                )
                self.servers.register(request, self.now)

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
        space = self.job.tasks.main.space
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
        return self.agent_calls.agent_report(request, self.now)

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
