"""One job in simulated time. A test plays its processes, servers, users and disk."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from master.runtime.service import Service
from master.runtime.watching import Watches
from master.state.actions import (
    CheckpointSaved,
    CommitLocal,
    DataScanned,
    Prune,
    Saved,
    SaveServers,
    Start,
    Stop,
)
from master.state.calls import server_calls, worker_calls
from master.state.job.job import ManagedJob
from master.state.job.restart import from_state, to_state
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import PENDING, RUNNING, Process
from master.state.workforce.servers import ServerCommand
from tests.unit.master.said import FINISHED, LEASED, Said
from torch_edl.config import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    DurabilityConfig,
    Experiment,
    JobConfig,
    Launch,
    TrainConfig,
)
from torch_edl.data.task_space import Shard
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.processes.launcher import ProcessExit, ProcessRuns, ProcessWaits
from torch_edl.wire import master_pb2 as pb

SHARDS = [Shard("a", 20), Shard("b", 12)]
SNAPSHOT = {"snapshot": {"files": {"f": 3}, "version": 9}}
TIMEOUT_S = 10.0
NO_ROOM = "no node has room: 0/3 nodes are available: 3 Insufficient cpu"


_DATA = {"batch_size": 2, "records_per_task": 4}
_CLUSTER = {"servers": 2, "heartbeat_timeout_s": TIMEOUT_S, "task_timeout_s": 60}


def _part(part: Any, options: Mapping[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(part)}
    return part(**{name: value for name, value in options.items() if name in names})


class World(Said):
    """A job and all that talks to its master. Nothing happens unless a test requests it.

    A process that the job starts or stops does so within :meth:`tick`; every other action is kept
    in :attr:`actions` until :meth:`effect` takes it.

    Args:
        least: minimum of workers; ``workers`` is the maximum.
        launch: how the workers of a script are started; None: torchrun starts them.
        cluster: processes are scheduled by Kubernetes.
        scheduled: processes may stay pending until a machine has room, as on a cluster.
        per_pod: number of workers with neighbouring slots that share a pod.
        spares: number of spare pods.
        spec: declaration of the model file's preprocessing.
        state: state that an earlier master stored; None for a new job.
        same_address: a restarted master listens where the earlier one did.
        fields: fields of CheckpointConfig, TrainConfig, DataConfig and ClusterConfig.
    """

    def __init__(
        self,
        *,
        kind: str = "train",
        workers: int = 1,
        least: int = 1,
        launch: Launch | None = None,
        cluster: bool = False,
        scheduled: bool = False,
        per_pod: int = 1,
        spares: int = 0,
        shards: Sequence[Shard] = SHARDS,
        eval_records: int = 0,
        durability: Mapping[str, str] | None = None,
        experiment: Experiment | None = None,
        spec: str = "",
        preprocessing: bytes = b"",
        resumed: Saved | None = None,
        resumed_later: Mapping[int, Saved] = MappingProxyType({}),
        evaluated: Sequence[Saved] = (),
        state: dict[str, Any] | None = None,
        same_address: bool = False,
        now: float = 0.0,
        **fields: Any,
    ) -> None:
        self.options = {k: v for k, v in locals().items() if k not in _NOT_OPTIONS} | fields
        parts = (CheckpointConfig, TrainConfig, DataConfig, ClusterConfig)
        assert fields.keys() <= {each.name for part in parts for each in dataclasses.fields(part)}
        script = kind == "script"
        evaluates = {"eval": ("eval.csv",)} if eval_records else {}
        cluster_part = {"min_workers": least, "max_workers": workers} | _CLUSTER
        self.config = JobConfig(
            name="j",
            kind=kind,
            model_file="/train.py",
            checkpoint=_part(CheckpointConfig, fields),
            train=_part(TrainConfig, {"strategy": "ps"} | fields),
            data=_part(DataConfig, _DATA | evaluates | fields),
            cluster=_part(ClusterConfig, cluster_part | fields),
            durability=DurabilityConfig(**(durability or {})),
            platform="kubernetes" if cluster else "local",
            platform_config=KubernetesConfig(image="edl") if cluster else None,
            experiment=experiment,
            launch=launch,
        )
        self.shards, self.eval_records = shards, eval_records
        servers = self.config.cluster.servers
        job = ManagedJob(
            self.config,
            Fleet(
                ServerCommand(job="j"),
                workers=workers,
                servers=servers,
                spares=spares,
                is_scheduled=cluster or scheduled,
                in_pods=cluster,
                workers_per_pod=per_pod,
                launch=launch,
                starts_workers=not script or launch is not None,
            ),
            folder=Path("/job"),
            resumed=resumed,
            resumed_later=resumed_later,
            evaluated=evaluated,
            preprocessing=preprocessing,
        )
        super().__init__(job, now=now, spec=spec)
        self.actions: list[Any] = []
        """Actions that no test has taken yet, except starts, stops and prunes."""
        self.started: list[Any] = []
        """Specs of all processes that were started."""
        self.stopped: list[Stop] = []
        self.silent: set[int] = set()
        """Servers that send no heartbeat."""
        self.alive: set[int] = set()
        """Workers that run, as far as the test is concerned."""
        self.counted: Counter[tuple[int, str, int]] = Counter()
        """How often each record (epoch, shard, number) was trained."""
        self.loss_sum = 1.0
        """Loss that each task of an evaluation finds, summed over its records."""
        self._keepers: dict[int, int] = {}
        if state is not None:
            from_state(self.job, state, self.now)
            timeout_s = self.config.cluster.heartbeat_timeout_s
            self.job.lifecycle.listens(
                self.now, same_address=same_address, heartbeat_timeout_s=timeout_s
            )
        self.job.start(self.now)
        self.tick()

    # ---- the master ----

    @property
    def outcome(self) -> Any:
        return self.job.lifecycle.outcome

    @property
    def fleet(self) -> Any:
        return self.job.fleet

    def tick(self, seconds: float = 0.0) -> list[Any]:
        """Let time pass, with all servers heard. Returns the actions of the job."""
        self.now += seconds
        for process in self.job.fleet.servers:
            if process.id not in self.silent:
                self.server_beat(process)
        actions = self.job.tick(self.now)
        for action in actions:
            if isinstance(action, Start):
                self.started.append(action.spec)
                role, id = action.spec.role, action.spec.id
                if self.fleet[role, id].state != PENDING:
                    self.job.apply(ProcessRuns(role=role, id=id, pid=1), self.now)
            elif isinstance(action, Stop):
                self.stopped.append(action)
                self.exit(action.role, action.id, signal=15 if action.grace_s else 9)
            elif not isinstance(action, Prune):
                self.actions.append(action)
        return actions

    def watches(self) -> Watches:
        """Return all installed watches, as a master of the job has them."""
        service = Service(self.job, clock=lambda: self.now, log_path=lambda role, id: "", cores=1)
        return Watches(service, lambda: self.now)

    def state(self) -> dict[str, Any]:
        """Return what a restarted master would find now."""
        return json.loads(json.dumps(to_state(self.job)))

    def restart(self, state: dict[str, Any] | None = None, **more: Any) -> World:
        """Return the same job under the next master, which finds ``state`` or the current state."""
        found = self.state() if state is None else state
        again = World(**{"now": self.now, **self.options, **more}, state=found)
        again.alive, again.rings = set(self.alive), dict(self.rings)
        return again

    def apply(self, event: Any) -> None:
        """Report the result of an action."""
        self.job.apply(event, self.now)

    def effect(self, type: type) -> Any:
        """Take the only action of a type that is open."""
        found = [action for action in self.actions if isinstance(action, type)]
        assert len(found) == 1, self.actions
        self.actions.remove(found[0])
        return found[0]

    # ---- processes ----

    def exit(self, role: str, id: int, *, code: int | None = None, **how: Any) -> None:
        """End a process that the master started."""
        if role == "worker":
            self.alive.discard(id)
            self.rings.pop(id, None)
        event = ProcessExit(role=role, id=id, code=code, **how)
        self.job.exited(event, self.now, log=f"/{role}-{id}.log")

    def kill(self, *workers: int) -> None:
        for worker in workers:
            self.exit("worker", worker, signal=9)

    def complete_script(self) -> None:
        """Let all processes of a script come to its end."""
        for process in self.fleet.alive("worker"):
            self.exit("worker", process.id, code=0)
        self.tick()

    def taken(self, role: str, id: int, why: str = "preempted") -> None:
        """End a process whose machine was taken away."""
        self.exit(role, id, code=143, why=why, own_fault=False)

    def waits(self, role: str, *ids: int, why: str = NO_ROOM, placed: bool = False) -> None:
        """Report that processes that were asked for do not run yet."""
        for id in ids:
            self.apply(ProcessWaits(role=role, id=id, why=why, fix="ask for less", placed=placed))

    def runs(self, role: str, *ids: int, registers: bool = True) -> None:
        """Report that processes that were asked for run."""
        for id in ids:
            self.apply(ProcessRuns(role=role, id=id, node="n1"))
            assert not registers or role != "worker" or self.fleet.registered(id)

    def begun(self, seconds: float = 0.0) -> list[str]:
        """Let time pass. Returns the names of the processes that start."""
        return [a.spec.name for a in self.tick(seconds) if isinstance(a, Start)]

    def servers_up(self) -> None:
        """Register all servers that were started."""
        self.tick()
        for process in self.job.fleet.alive("ps"):
            if process.state == "starting":
                self.server_register(process.shard, process.incarnation, process.id)

    def server_beat(self, process: Process, **fields: Any) -> pb.ServerHeartbeatResponse:
        """Send a heartbeat of a server, which has had a copy at its peer since the last one."""
        keeper = self._keepers.get(process.incarnation, 0)
        told = {"keeper": keeper, "note": 1 if keeper else 0, "has_copy": True} | fields
        request = pb.ServerHeartbeatRequest(
            shard=process.shard, incarnation=process.incarnation, **told
        )
        answer = self.call(server_calls.heartbeat, request)
        if process.state == RUNNING and self.config.durability.mode == "replica":
            self._keepers[process.incarnation] = answer.peer.incarnation
        return answer

    def up(self) -> None:
        """Register what was started, report the model, and count the data."""
        self.servers_up()
        for process in self.job.fleet.alive("worker"):
            if process.state == "starting":
                self.call(worker_calls.register, pb.RegisterRequest(worker_id=process.id))
                self.alive.add(process.id)
                self.rings[process.id] = 0
                self.report_model(process.id)
        if not self.job.tasks.ready:
            key = {"train": "train", "evaluate": "eval", "predict": "predict"}[self.config.kind]
            found = {key: list(self.shards)}
            if self.eval_records:
                found["eval"] = [Shard("test", self.eval_records)]
            self.apply(DataScanned(found))
        self.tick()

    def all_up(self) -> None:
        """Bring up all processes, including those that others have to wait for. On a cluster, all
        pods but those of spares run then."""
        for _ in range(3):
            for process in self.job.fleet.alive():
                if process.state == "pending" and process.kind != "spare":
                    self.runs(process.role, process.id, registers=False)
            self.up()

    def pass_time(self, seconds: float, *, step: float = 0.5) -> None:
        """Let time pass in which all living processes report."""
        for _ in range(round(seconds / step)):
            for worker in sorted(self.alive):
                self.beat(worker)
            self.tick(step)

    # ---- tasks ----

    def do(self, worker: int, lease: pb.LeaseMessage) -> bool:
        """Do a task as a good worker does. Returns whether it counts."""
        if lease.kind == pb.TASK_SNAPSHOT:
            return self.complete(worker, lease, result=SNAPSHOT)
        result = None
        if lease.kind == pb.TASK_EVALUATE:
            records = lease.end - lease.start
            state = pb.MetricState(name="loss", sum=self.loss_sum, records=records)
            result = {"metrics": {"states": [state]}}
        steps = -(-(lease.end - lease.start) // self.job.config.data.batch_size)
        known = self.complete(worker, lease, steps=steps, result=result)
        if known and lease.kind in (pb.TASK_TRAIN, pb.TASK_PREDICT):
            for i in range(lease.start, lease.end):
                self.counted[lease.epoch, lease.shard, i] += 1
        return known

    def work(self, tasks: int | None = None) -> None:
        """Let all workers do one task after the other, ``tasks`` in all or as many as there are."""
        count = 0
        for _ in range(10_000):
            busy = False
            for worker in sorted(self.alive):
                answer = self.lease(worker)
                if answer is None or answer.next != LEASED:
                    continue
                for lease in answer.leases:
                    if tasks is not None and count >= tasks:
                        self.release(worker, lease)
                        return
                    self.do(worker, lease)
                    count += 1
                    busy = True
            self.tick(0.1)
            if not busy:
                return
        raise AssertionError("the work never ends")

    # ---- checkpoints ----

    def saved(self, progress: Any, incarnation: int, metrics: Any = MappingProxyType({})) -> Saved:
        """Report a checkpoint as written."""
        saved = self.made(progress, metrics)
        self.apply(CheckpointSaved(saved, incarnation))
        return saved

    def save(self) -> Saved:
        """Write the checkpoint of the servers that is asked for."""
        effect = self.effect(SaveServers)
        return self.saved(effect.progress, effect.incarnation, effect.manifest.metrics)

    def commit(self) -> Saved:
        """Commit the checkpoint that a worker wrote."""
        effect = self.effect(CommitLocal)
        return self.saved(effect.manifest.watermarks, effect.incarnation)

    def leave_all(self) -> None:
        """Tell all workers that the job is over; they end."""
        for worker in sorted(self.alive):
            assert self.lease(worker).next == FINISHED
            self.exit("worker", worker, code=0)
        for _ in range(3):
            self.tick(0.1)

    # ---- rings ----

    def ring(self, *workers: int, ring: int = 0, step: int = -1) -> pb.Ring:
        """Let these workers of a script ask. Returns the ring that the first one gets."""
        for worker in workers:
            self.join(worker, ring=ring, step=step)
        self.tick(0.6)
        return self.join(workers[0], ring=ring, step=step).ring

    def meet(self, step: int = -1) -> pb.Ring:
        """Bring all living workers of a model file into the newest ring. Returns it."""
        ring = self.job.ring
        for _ in range(5):
            for worker, was in sorted(self.rings.items()):
                if was < ring.number or was == 0 or ring.stale() or ring.broken(self.now):
                    answer = self.join(worker, step=step if was else -1)
                    self.rings[worker] = answer.ring.number if answer is not None else was
            self.tick(0.6)
        assert set(self.rings.values()) == {ring.number}
        return self.join(min(self.rings), ring=0).ring

    def at(self, position: int, *workers: int, ring: int | None = None) -> pb.HeartbeatResponse:
        """Let members (all by default) report that many records in their model."""
        for worker in workers or sorted(self.rings):
            of = self.rings[worker] if ring is None else ring
            answer = self.beat(worker, loss=1.0, steps=position, position=position, ring=of)
        self.tick(0.1)
        return answer


_NOT_OPTIONS = ("self", "__class__", "state", "now", "fields")


def every_record(epochs: int = 1) -> Counter[tuple[int, str, int]]:
    return Counter((e, s.name, i) for e in range(epochs) for s in SHARDS for i in range(s.records))


def running(**options: Any) -> World:
    """Return the job of a model file with all its processes up."""
    w = World(**options)
    w.all_up()
    return w
