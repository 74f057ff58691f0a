"""A training job on the cluster: the real master, and the pods that it asks for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster.machines import RUNNING, Clock, End, Kubelets, Machine, Pod
from benchmarks.cluster.scheduler import Scheduler
from benchmarks.cluster.spec import JobSpec
from benchmarks.cluster.usage import Meter, Usage
from benchmarks.cluster.workers import BATCH_SIZE, Watermarks, Worker
from master.runtime.clock import of_notes, of_ticks
from master.state.actions import DataScanned, Start, Stop
from master.state.calls import server_calls, worker_calls
from master.state.job.job import ManagedJob
from master.state.job.restart import to_state
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import RUNNING as RUNS
from master.state.workforce.processes import Process
from master.state.workforce.servers import ServerCommand
from torch_edl.config import ClusterConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.processes.launcher import ProcessExit, ProcessRuns
from torch_edl.wire import master_pb2 as pb

_MASTER_STARTS_S = 1.0  # no torch is imported
_SERVER_STARTS_S = 0.7
_LONG_POLL_S = 2.0  # how long the service lets a call wait


_FILES = 16  # files of the records
# Of the workers; and of master and servers, which nothing else preempts.
_PRIORITY, _RESERVED_PRIORITY = 10, 50


class TrainingJob:
    """One job, from its submission until its last process has ended."""

    def __init__(
        self, spec: JobSpec, clock: Clock, scheduler: Scheduler, usage: Usage, meter: Meter
    ) -> None:
        self.spec, self.clock = spec, clock
        self.rng = random.Random(spec.seed)
        self._scheduler, self._usage, self._meter = scheduler, usage, meter
        per_file, more = divmod(spec.records, _FILES)
        self._shards = [Shard(f"file-{i:03d}", per_file + (i < more)) for i in range(_FILES)]
        self.config = JobConfig(
            name=spec.name,
            model_file="/model.py",
            data=DataConfig(batch_size=BATCH_SIZE, records_per_task=spec.records_per_task),
            train=TrainConfig(strategy="ps"),
            cluster=ClusterConfig(
                min_workers=spec.min_workers, max_workers=spec.max_workers, servers=spec.servers
            ),
        )
        self.watermarks = Watermarks(TaskSpace.for_training(self._shards, self.config))
        fleet = Fleet(
            ServerCommand(job=spec.name),
            workers=spec.max_workers,
            servers=spec.servers,
            is_scheduled=True,
        )
        self.job = ManagedJob(self.config, fleet, folder=Path("/job"))
        calls = worker_calls
        self._handlers: dict[type, Callable[[ManagedJob, Any, float], Any]] = {
            pb.RegisterRequest: calls.register,
            pb.ReportModelRequest: calls.report_model,
            pb.WaitUntilReadyRequest: calls.wait_until_ready,
            pb.HeartbeatRequest: calls.heartbeat,
            pb.LeaseRequest: calls.lease,
            pb.CompleteTaskRequest: calls.complete_task,
            pb.ReleaseTaskRequest: calls.release_task,
        }
        self._pods: dict[tuple[str, int], Pod] = {}
        self._master: Pod | None = None
        self._waiting: list[tuple[Callable[[], bool], float]] = []
        self.leases = 0
        """Tasks that were leased."""
        self.lost = 0
        """Worker processes that ended before the job did."""
        self.submitted_at = 0.0
        self.began_at: float | None = None
        """When a worker first trained."""
        self.ended_at: float | None = None
        self._ticks, self._notes = of_ticks(), of_notes()
        self.state_bytes = 0
        """The most that a note of the state took, as JSON."""

    # ---- the life of the job ----

    def submit(self) -> None:
        """The user submits the job; the client makes a pod for the master."""
        self.submitted_at = self.clock.now
        if self.spec.gang:
            self._scheduler.hold(self.spec.name, self.spec.cpus)
        self._master = self._pod("master", 0, run=self._start, terminate=_stays)

    def _start(self, pod: Pod) -> None:
        def begin() -> None:
            self.job.start(self.clock.now)
            self.clock.every(self.spec.tick_s, self._tick)
            self.clock.every(self.spec.heartbeat_s, self._servers_beat)
            if self.spec.keeps_state:
                self.clock.every(1.0, self._keep)
            self._apply(DataScanned({"train": self._shards}))
            self._usage.add(self._usage.busy, self.spec.name, pod.cpus)

        self.clock.after(_MASTER_STARTS_S, begin)

    def _tick(self) -> bool:
        job, now = self.job, self.clock.now
        if self._ticks.until_due(now):
            return True
        actions = self._meter("tick", job.tick, now)
        self._ticks.took(self._meter.last_s, now)
        for action in actions:
            if isinstance(action, Start):
                self._create(action)
            elif isinstance(action, Stop):
                self._meter.calls["api: delete"] += 1
                self._scheduler.delete(self._pods[action.role, action.id], action.grace_s)
            else:
                raise AssertionError(f"{action}: not an action of a job without checkpoints")
        over = job.lifecycle.outcome is not None
        self._notify(changed=job.changed or bool(actions) or over or job.tasks.available)
        job.changed = False
        if not job.lifecycle.over:
            return True
        assert job.lifecycle.outcome is not None
        assert job.lifecycle.outcome.state == "finished", job.lifecycle.outcome
        self.ended_at = now
        assert self._master is not None
        self._usage.add(self._usage.busy, self.spec.name, -self._master.cpus)
        self._scheduler.exited(self._master, 0)
        self._scheduler.release(self.spec.name)
        return False

    def _keep(self) -> bool:
        now = self.clock.now
        if not self._notes.until_due(now):
            text = self._meter("state", lambda: json.dumps(to_state(self.job)))
            self._notes.took(self._meter.last_s, now)
            self.state_bytes = max(self.state_bytes, len(text))
        return self.ended_at is None

    def _apply(self, event: Any) -> None:
        self._meter("apply", self.job.apply, event, self.clock.now)

    # ---- pods ----

    def _create(self, action: Start) -> None:
        role, id = action.spec.role, action.spec.id
        begin: Callable[[Pod], None]
        calls: dict[str, Callable[[Pod], None]]
        if role == "worker":
            worker = Worker(id, self)
            begin, calls = worker.run, {"terminate": worker.terminate, "kill": worker.kill}
        else:
            server = self.job.fleet.process(role, id)
            assert server is not None
            begin = lambda pod: self._register(server)  # noqa: E731
            calls = {"terminate": lambda pod: self.exited(pod, 143)}

        def run(pod: Pod) -> None:
            assert pod.machine is not None
            self._apply(ProcessRuns(role=role, id=id, node=pod.machine.name))
            begin(pod)

        self._meter.calls["api: create"] += 1
        self._pods[role, id] = self._pod(
            role, id, run=run, ended=lambda end: self._ended(role, id, end), **calls
        )

    def _pod(self, role: str, id: int, **calls: Any) -> Pod:
        spec, is_worker = self.spec, role == "worker"
        pod = Pod(
            name=f"{spec.name}-{role}-{id}",
            user=spec.name,
            cpus=1,
            priority=_PRIORITY if is_worker else _RESERVED_PRIORITY,
            image="model",
            group=spec.name if spec.gang else "",
            reserved=not is_worker,
            **calls,
        )
        self._scheduler.submit(pod)
        return pod

    def _ended(self, role: str, id: int, end: End) -> None:
        del self._pods[role, id]
        if role == "ps":
            self._usage.add(self._usage.busy, self.spec.name, -1)
        elif self.job.lifecycle.outcome is None:
            self.lost += 1
        exit = ProcessExit(role=role, id=id, code=end.code, signal=end.signal)
        self._meter("exited", self.job.exited, exit, self.clock.now, log="")

    def _register(self, server: Process) -> None:
        def register() -> None:
            self._usage.add(self._usage.busy, self.spec.name, 1)
            request = pb.RegisterServerRequest(
                shard=server.shard, incarnation=server.incarnation, address=f"server-{server.id}"
            )
            self._answer("RegisterServer", server_calls.register, request)

        self.clock.after(_SERVER_STARTS_S, register)

    def _servers_beat(self) -> bool:
        for server in self.job.fleet.servers:
            if server.state == RUNS:
                request = pb.ServerHeartbeatRequest(
                    shard=server.shard, incarnation=server.incarnation
                )
                self._answer("ServerHeartbeat", server_calls.heartbeat, request)
        return self.ended_at is None

    # ---- what its workers ask ----

    def insist(self, request: Any, *, timeout_s: float, away_s: float) -> Any:
        name = type(request).__name__.removesuffix("Request")
        answer = self._answer(name, self._handlers[type(request)], request)
        if isinstance(request, pb.LeaseRequest):
            if answer is None:
                return worker_calls.nothing_to_lease(self.job)
            self.leases += len(answer.leases)
        return answer

    def _answer(self, name: str, rpc: Callable[[ManagedJob, Any, float], Any], request: Any) -> Any:
        return self._meter(name, rpc, self.job, request, self.clock.now)

    def wait(self, ask: Callable[[], bool]) -> None:
        if not ask():
            self._waiting.append((ask, self.clock.now))

    def _notify(self, *, changed: bool) -> None:
        """Calls that wait are answered when something has changed, or come again after a while."""
        waiting, self._waiting, now = self._waiting, [], self.clock.now
        for ask, since in waiting:
            if not changed and now - since < _LONG_POLL_S:
                self._waiting.append((ask, since))
            else:
                self.wait(ask)

    def works(self, pod: Pod, *, busy: bool) -> None:
        if busy and self.began_at is None:
            self.began_at = self.clock.now
        self._usage.add(self._usage.busy, self.spec.name, pod.cpus if busy else -pod.cpus)

    def exited(self, pod: Pod, code: int) -> None:
        self._scheduler.exited(pod, code)

    # ---- what it came to ----

    def check(self) -> None:
        """Raises AssertionError unless each record was done exactly once, and the master knows."""
        self.watermarks.check()
        main = self.job.tasks.main
        assert main is not None
        assert self.watermarks.applied == self.spec.records == main.records_done

    def running(self) -> int:
        """Worker processes that run."""
        pods = self._pods.items()
        return sum(role == "worker" and pod.state == RUNNING for (role, _), pod in pods)


def _stays(pod: Pod) -> None:
    raise AssertionError("the machine of the master stays")


class World:
    """Machines, their scheduler, and the jobs that were submitted.

    Args:
        sample_s: between two samples of the usage.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        *,
        seed: int,
        pull_s: float = 20.0,
        sample_s: float = 1.0,
    ) -> None:
        self.clock = Clock()
        self.usage = Usage(self.clock)
        self.meter = Meter()
        """Counts the work of the masters of all jobs."""
        self.rng = random.Random(seed)
        self.kubelets = Kubelets(self.clock, self.rng, pull_s=pull_s)
        self.scheduler = Scheduler(self.clock, machines, self.kubelets, self.usage)
        self.jobs: list[TrainingJob] = []
        self.clock.every(sample_s, self.usage.sample)

    def submit(self, spec: JobSpec, *, at_s: float = 0.0) -> TrainingJob:
        """A user submits a job at a time that is to come."""
        job = TrainingJob(spec, self.clock, self.scheduler, self.usage, self.meter)
        self.jobs.append(job)
        self.clock.after(at_s - self.clock.now, job.submit)
        return job

    def run_jobs(self) -> float:
        """Until every job has ended; returns when. Each record was done exactly once."""
        self.clock.run(done=lambda: all(job.ended_at is not None for job in self.jobs))
        for job in self.jobs:
            job.check()
        return self.clock.now
