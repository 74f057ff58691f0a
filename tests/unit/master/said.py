"""What workers, servers, torchrun and users say to the master of a job, in one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from master.state.actions import Saved
from master.state.calls import script_calls, server_calls, user_calls, worker_calls
from master.state.job.job import ManagedJob
from master.state.work.progress import steps_of
from torch_edl.checkpoint.layout import step_dir
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.data.resuming import identity
from torch_edl.wire import master_pb2 as pb

LEASED, FINISHED = pb.LeaseResponse.LEASED, pb.LeaseResponse.FINISHED
CHANGED, DRAIN = pb.LeaseResponse.CLUSTER_CHANGED, pb.LeaseResponse.DRAIN
DATA = {"records": 100, "epochs": 2, "batch_size": 10, "records_per_task": 50}


class Said:
    """The calls of one job at the time :attr:`now`.

    Args:
        spec: declaration of the model file's preprocessing.
    """

    def __init__(self, job: ManagedJob, *, now: float, spec: str) -> None:
        self.job, self.now, self.spec = job, now, spec
        self.rings: dict[int, int] = {}
        """Ring in which each living worker trains; 0 before its first."""

    def call(self, rpc: Callable[..., Any], request: Any, **options: Any) -> Any:
        return rpc(self.job, request, self.now, **options)

    # ---- users and servers ----

    def scale(self, workers: int = 0, *, servers: int = 0, least: int | None = None) -> str:
        least = min(1, workers) if least is None else least
        request = pb.ScaleRequest(min_workers=least, max_workers=workers, servers=servers)
        return self.call(user_calls.scale, request).text

    def server_register(self, shard: int, incarnation: int, id: int, **fields: Any) -> Any:
        request = pb.RegisterServerRequest(
            shard=shard, incarnation=incarnation, address=f"s{id}", **fields
        )
        return self.call(server_calls.register, request)

    # ---- workers ----

    def register(self, pid: int, **fields: Any) -> int:
        """Register a worker of a script under torchrun. Returns its id."""
        return self.enters(pid, **fields).worker_id

    def enter(
        self, worker: int, *, pid: int = 0, training: int = 1, missing: str = ""
    ) -> pb.RegisterResponse | None:
        """Let a process of a script that a node has started enter a training; None while it
        waits."""
        pid = pid or 11 + worker
        request = pb.RegisterRequest(
            worker_id=worker, pid=pid, host="h", training=training, missing=missing
        )
        return self.call(worker_calls.register, request)

    def enters(
        self,
        pid: int,
        *,
        node: str = "n",
        local_rank: int = 0,
        training: int = 1,
        missing: str = "",
    ) -> pb.RegisterResponse | None:
        """Let a process of torchrun enter a training; None while it waits."""
        request = pb.RegisterRequest(
            worker_id=-1,
            pid=pid,
            host="h",
            node=node,
            local_rank=local_rank,
            training=training,
            missing=missing,
        )
        return self.call(worker_calls.register, request)

    def report_model(
        self, worker: int = 0, *embeddings: pb.EmbeddingReport, **fields: Any
    ) -> pb.Start | None:
        model = {"preprocessing": self.spec} | fields
        self.call(worker_calls.report_model, pb.ReportModelRequest(embeddings=embeddings, **model))
        return self.start(worker)

    def report_data(self, worker: int = 0, **changes: Any) -> pb.Start | None:
        """Report the data of a script's loader."""
        data = pb.ScriptData(**{**DATA, **changes})
        self.call(script_calls.report_data, pb.ReportDataRequest(data=data))
        return self.start(worker)

    def wait(self, worker: int = 0) -> pb.WaitUntilReadyResponse | None:
        request = pb.WaitUntilReadyRequest(worker_id=worker)
        return self.call(worker_calls.wait_until_ready, request, cores=8)

    def start(self, worker: int = 0) -> pb.Start | None:
        """Return what the worker begins with; None if it has to wait."""
        answer = self.wait(worker)
        return answer.start if answer is not None and answer.HasField("start") else None

    def beat(self, worker: int = 0, **fields: Any) -> pb.HeartbeatResponse:
        return self.call(worker_calls.heartbeat, pb.HeartbeatRequest(worker_id=worker, **fields))

    # ---- tasks ----

    def lease(self, worker: int = 0, *, want: int = 1, **fields: Any) -> pb.LeaseResponse | None:
        life = {"incarnation": self.job.fleet.model.incarnation}
        request = pb.LeaseRequest(worker_id=worker, want=want, **(life | fields))
        return self.call(worker_calls.lease, request)

    def task(self, worker: int = 0, **fields: Any) -> pb.LeaseMessage:
        """Lease one task."""
        answer = self.lease(worker, **fields)
        assert answer is not None
        assert answer.next == LEASED
        (lease,) = answer.leases
        return lease

    def complete(
        self, worker: int, lease: pb.LeaseMessage, *, result: Any = None, **counts: Any
    ) -> bool:
        """Report a task as done. Returns whether the master knows its lease."""
        counts = {"records": lease.end - lease.start - lease.offset, **counts}
        request = pb.CompleteTaskRequest(
            worker_id=worker, lease_id=lease.lease_id, counts=counts, **(result or {})
        )
        return self.call(worker_calls.complete_task, request).known

    def release(self, worker: int, lease: pb.LeaseMessage) -> None:
        request = pb.ReleaseTaskRequest(worker_id=worker, lease_id=lease.lease_id)
        self.call(worker_calls.release_task, request)

    def fail(self, worker: int, lease: pb.LeaseMessage, error: str, **fields: Any) -> None:
        request = pb.FailTaskRequest(
            worker_id=worker, lease_id=lease.lease_id, error=error, **fields
        )
        self.call(worker_calls.fail_task, request)

    # ---- rings ----

    def join(self, worker: int, *, ring: int | None = None, step: int = -1) -> Any:
        """Ask for the next ring."""
        ring = self.rings.get(worker, 0) if ring is None else ring
        request = pb.JoinRingRequest(worker_id=worker, ring=ring, step=step, store=f"s{worker}")
        return self.call(worker_calls.join_ring, request)

    def stand_by(self, worker: int, *, ring: int, step: int) -> Any:
        request = pb.StandByRequest(worker_id=worker, ring=ring, step=step, store=f"s{worker}")
        return self.call(worker_calls.stand_by, request)

    def leave(self, worker: int, *, finished: bool = False, training: int | None = None) -> None:
        training = self.job.trainings.number if training is None else training
        request = pb.LeaveRingRequest(worker_id=worker, finished=finished, training=training)
        self.call(worker_calls.leave_ring, request)

    def report_checkpoint(self, worker: int, path: str = "/c/1") -> bool:
        """Report a checkpoint of a ring. Returns whether the master accepts it."""
        request = pb.ReportCheckpointRequest(worker_id=worker, directory=path)
        return self.call(worker_calls.report_checkpoint, request).accepted

    # ---- torchrun ----

    def join_round(self, node: str, store: str = "1", **limits: Any) -> Any:
        limits = {"min_nodes": 1, "max_nodes": 2, "last_call_s": 0.0} | limits
        request = pb.JoinRoundRequest(node=node, store=f"{node}:{store}", **limits)
        return self.call(script_calls.join_round, request)

    def leave_round(self, node: str) -> None:
        self.call(script_calls.leave_round, pb.LeaveRoundRequest(node=node))

    def close_rounds(self, error: str = "") -> None:
        self.call(script_calls.close_rounds, pb.CloseRoundsRequest(error=error))

    # ---- what the job shows ----

    def status(self) -> pb.GetStatusResponse:
        return user_calls.describe(
            self.job,
            asked=pb.GetStatusRequest(),
            now=self.now,
            master=pb.ProcessStatus(role="master"),
            log_path=lambda role, id: f"/logs/{role}-{id}.log",
        )

    def texts(self, level: str | None = None) -> list[str]:
        """Return the texts of the events that a terminal shows, or of those of a level."""
        shown = ("info", "warning", "error") if level is None else (level,)
        return [e.text for e in self.job.lifecycle.log.after(0) if e.level in shown]

    def said(self, part: str, level: str | None = None) -> int:
        """Return how many events contain a text."""
        return sum(part in text for text in self.texts(level))

    def server_addresses(self) -> list[str]:
        return [server.address for server in self.job.fleet.servers.now()]

    def made(self, progress: Any, metrics: Mapping[str, float] = MappingProxyType({})) -> Saved:
        """Return the checkpoint of some progress."""
        tasks = self.job.tasks
        steps = steps_of(tasks.main.space, progress)
        manifest = Manifest(
            job="j",
            strategy=self.job.fleet.strategy,
            steps=steps,
            shards=2,
            watermarks=progress,
            metrics=dict(metrics),
            data=identity(self.job.config, tasks.shards),
        )
        return Saved(step_dir(self.job.checkpoints.root, steps), manifest)
