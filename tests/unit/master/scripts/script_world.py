"""The job of a training script in a ring, in simulated time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from master.state.actions import Saved
from master.state.calls.agent_calls import AgentCalls
from master.state.calls.calls import Calls
from master.state.calls.user_calls import UserCalls
from master.state.job.job import Job
from master.state.job.restart import from_state, to_state
from master.state.job.status import describe
from master.state.scripts.script_fleet import ScriptFleet
from master.state.workforce.server_command import ServerCommand
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, ClusterConfig, Experiment, JobConfig, TrainConfig
from torch_edl.wire import master_pb2 as pb

TIMEOUT_S = 10.0


class World:
    """One master of a script, and what agents and workers tell it."""

    def __init__(
        self,
        *,
        least: int = 1,
        most: int = 2,
        resumed: str = "",
        left: dict | None = None,
        now: float = 0.0,
        experiment: Experiment | None = None,
    ) -> None:
        self.config = JobConfig(
            name="j",
            kind="script",
            model_file="/train.py",
            train=TrainConfig(strategy="allreduce"),
            cluster=ClusterConfig(
                min_workers=least, max_workers=most, heartbeat_timeout_s=TIMEOUT_S
            ),
            checkpoint=CheckpointConfig(dir="/c") if resumed else CheckpointConfig(),
            experiment=experiment,
        )
        self.now = now
        manifest = Manifest(job="j", strategy="allreduce", steps=5, shards=1)
        self.job = Job(
            self.config,
            ScriptFleet(ServerCommand(job="j"), workers=most, servers=1),
            folder=Path("/job"),
            resumed=Saved(Path(resumed), manifest) if resumed else None,
        )
        self.calls = Calls(self.job, cores=8)
        self.user_calls = UserCalls(self.job)
        self.agent_calls = AgentCalls(self.job)
        if left is not None:
            from_state(self.job, left, now)
        self.job.start(now)

    def again(self) -> World:
        """The master that is started after this one was killed."""
        left = json.loads(json.dumps(to_state(self.job)))
        return World(most=self.config.cluster.max_workers, left=left, now=self.now)

    @property
    def outcome(self) -> Any:
        return self.job.lifecycle.outcome

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        assert self.job.tick(self.now) == [], "a script's master starts nothing"

    def register(self, pid: int, *, node: str = "n", local_rank: int = 0) -> int:
        request = pb.RegisterRequest(
            worker_id=-1, pid=pid, host="h", node=node, local_rank=local_rank
        )
        return self.calls.register(request, self.now).worker_id

    def join(self, worker: int, *, ring: int = 0, step: int = -1) -> pb.JoinRingResponse:
        request = pb.JoinRingRequest(worker_id=worker, ring=ring, step=step, store=f"s{worker}")
        answer = self.calls.join_ring(request, self.now)
        return answer if answer is not None else pb.JoinRingResponse()

    def stand_by(self, worker: int, *, ring: int, step: int) -> pb.JoinRingResponse:
        request = pb.StandByRequest(worker_id=worker, ring=ring, step=step, store=f"s{worker}")
        answer = self.calls.stand_by(request, self.now)
        return answer if answer is not None else pb.JoinRingResponse()

    def leave(self, worker: int, *, finished: bool = False) -> None:
        self.calls.leave_ring(pb.LeaveRingRequest(worker_id=worker, finished=finished), self.now)

    def ring(self, *workers: int, ring: int = 0, step: int = -1) -> pb.JoinRingResponse:
        """They all ask, and the first one's answer."""
        for worker in workers:
            self.join(worker, ring=ring, step=step)
        self.tick(0.6)
        return self.join(workers[0], ring=ring, step=step)

    def beat(self, worker: int, **fields) -> pb.HeartbeatResponse:
        return self.calls.heartbeat(
            pb.HeartbeatRequest(worker_id=worker, loss=0.5, **fields), self.now
        )

    def agent(self, node: str = "n", *workers: pb.AgentWorker, pid: int = 1, **fields):
        request = pb.AgentReportRequest(node=node, pid=pid, host="h", workers=workers, **fields)
        return self.agent_calls.agent_report(request, self.now)

    def committed(self, worker: int, to: str = "/c/1") -> bool:
        """Whether the master takes the checkpoint of the worker."""
        request = pb.ReportCheckpointRequest(worker_id=worker, directory=to)
        return self.calls.report_checkpoint(request, self.now).accepted

    def status(self) -> pb.GetStatusResponse:
        return describe(
            self.job,
            events_after=0,
            now=self.now,
            master=pb.ProcessStatus(role="master"),
            log_path=lambda role, id: f"/job/logs/{role}-{id}.log",
        )

    def texts(self) -> str:
        return "\n".join(e.text for e in self.job.lifecycle.log.after(0))
