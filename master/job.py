"""The job: one state machine over tasks, workers, processes, evaluations and checkpoints. Pure.

Every method is an event with the time at which it happened; the service calls them under its
lock. :meth:`Job.tick` returns what is to be done in the world; what came of it comes back as
another event.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from master.evaluation import Evaluations, Result
from master.fleet import CrashLoop, Fleet, ServersGone, Start, Stop, check_scale
from master.membership import Membership
from master.saves import Saved, Saves, check_resume, identity
from master.status import Events, Rates
from master.task_space import Shard, TaskSpace
from master.tasks import Lease, Pass, Progress, TaskQueue, errand, union
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.base import ProcessExit
from torch_edl.strategy.choose import Choice, EmbeddingSize, choose
from torch_edl.wire import master_pb2 as pb

_LEAVE_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """How the job ends."""

    state: str
    """``finished``, ``failed`` or ``stopped``."""
    exit_code: int
    error: str = ""
    traceback: str = ""
    usage_error: bool = False


@dataclass(frozen=True)
class SaveServers:
    """Take a checkpoint of all servers."""

    addresses: Sequence[str]
    incarnation: int
    progress: Progress
    """What was done before it began."""


@dataclass(frozen=True)
class MakeFolder:
    """Make the folder into which the worker of the strategy ``local`` writes."""

    directory: Path
    incarnation: int


@dataclass(frozen=True)
class CommitLocal:
    """Make a checkpoint of what the worker of the strategy ``local`` wrote."""

    directory: Path
    files: dict[str, int]
    progress: Progress
    version: int
    incarnation: int


@dataclass(frozen=True)
class Flush:
    """Have the servers apply what waits for its quorum."""

    addresses: Sequence[str]
    incarnation: int


@dataclass(frozen=True)
class WriteOutput:
    """Write the trained model."""

    checkpoint: Path
    output: Path


Effect = SaveServers | MakeFolder | CommitLocal | Flush | WriteOutput
Action = Start | Stop | Effect


class Job:
    """One job.

    Args:
        fleet: its processes, none of them started yet.
        folder: of the job, for what is temporary.
        cores: CPU cores to divide among the workers.
        resumed: the checkpoint to go on from.
        wall_offset_s: Unix time minus the clock of the events.
    """

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        *,
        folder: Path,
        cores: int,
        resumed: Saved | None = None,
        wall_offset_s: float = 0.0,
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.members = Membership(heartbeat_timeout_s=config.cluster.heartbeat_timeout_s)
        self.events = Events()
        self.rates = Rates()
        self.saves = Saves(config.checkpoint, temporary=folder / "final", newest=resumed)
        self.main: Pass | None = None
        self.evaluations: Evaluations | None = None
        self.outcome: Outcome | None = None
        self.over = False
        self.reason = ""
        self.damaged = 0
        self.nan_steps = 0
        self.train_shards: Sequence[Shard] = ()
        self.first_lease_at: float | None = None
        self.trained_at: float | None = None
        self.records_before = 0
        self._cores = cores
        self._resumed = resumed
        self._wall_offset_s = wall_offset_s
        self._lease_ids = itertools.count(1)
        self._scanned: dict[str, Sequence[Shard]] | None = None
        self._scan_error = ""
        self._model: pb.ReportModelRequest | None = None
        self._snapshot: Pass | None = None
        self._snapshot_base = Progress()
        self._snapshots = 0
        self._flush = "" if config.train.mode == "sync" else "done"
        self._output = "" if config.checkpoint.output and config.kind == "train" else "done"
        self._epoch = 0
        self._effects: list[Effect] = []

    # ---- what it says ----

    @property
    def state(self) -> str:
        """starting, running, finishing, finished, failed or stopped."""
        if self.outcome is not None:
            return self.outcome.state if self.over else "finishing"
        if self.first_lease_at is None:
            return "starting"
        return "finishing" if self.main is not None and self.trained else "running"

    @property
    def ready(self) -> bool:
        """The data is known: tasks can be leased."""
        return self.main is not None or self.evaluations is not None

    @property
    def trained(self) -> bool:
        """Every training (or prediction) task is done."""
        return self.ready and (self.main is None or self.main.queue.complete)

    def wall_s(self, now: float) -> float:
        """Seconds since the first task was leased, until the work was done."""
        if self.first_lease_at is None:
            return 0.0
        return (now if self.trained_at is None else self.trained_at) - self.first_lease_at

    def done(self) -> tuple[int, int]:
        """(records, minibatches): of finished tasks, and what workers told of running ones."""
        if self.main is None:
            return (self.evaluations.records_done if self.evaluations is not None else 0), 0
        records, steps = self.main.queue.records_done, self.main.queue.steps_done
        for member in self.members:
            open_records, open_steps = self.main.queue.open_steps(member.id)
            records += min(max(0, member.records - member.reported_records), open_records)
            steps += min(max(0, member.steps - member.reported_steps), open_steps)
        return records, steps

    def cluster(self) -> pb.Cluster | None:
        """The servers of today; None while they start."""
        addresses = self.fleet.addresses
        if addresses is None:
            return None
        return pb.Cluster(
            incarnation=self.fleet.incarnation,
            servers=addresses,
            restored_from=self.fleet.restored_from,
        )

    def torch_threads(self) -> int:
        """Torch threads of each worker."""
        fixed = self.config.cluster.worker_threads
        return fixed or max(1, self._cores // max(1, self.fleet.workers_wanted))

    # ---- events of the data and the model ----

    def scanned(
        self, shards: dict[str, Sequence[Shard]], now: float, *, damaged: int = 0, error: str = ""
    ) -> None:
        """The sources are counted: ``train``, ``eval`` and ``predict`` to their shards.

        An error counts only if the model file brings no source of its own.
        """
        self._scanned, self._scan_error = shards, error
        self.damaged += damaged
        if damaged:
            self.tell("warning", f"{damaged} damaged records are left out", now)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Makes the queues once everything about the data is known."""
        if self._scanned is None or self._model is None or self.ready:
            return
        key = {"train": "train", "evaluate": "eval", "predict": "predict"}[self.config.kind]
        try:
            if self._model.custom_source:
                shards: Sequence[Shard] = [Shard(s.name, s.records) for s in self._model.shards]
            elif self._scan_error:
                raise UsageError(self._scan_error)
            else:
                shards = self._scanned.get(key, ())
            if not shards:
                raise UsageError(
                    "no data: name files with --data, or give the model file a data_source"
                )
            if not sum(s.records for s in shards):
                names = ", ".join(s.name for s in shards[:3])
                raise UsageError(f"{names}: no records in there; name data that has some")
            self._make_queues(shards, now)
        except UsageError as error:
            self.fail(str(error), now, usage=True)

    def _make_queues(self, shards: Sequence[Shard], now: float) -> None:
        config = self.config
        if self._resumed is not None:
            then = self._resumed.manifest.data
            check_resume(self._resumed.path, then, identity(config, shards))
        timeout_s = config.cluster.task_timeout_s
        if config.kind != "train":
            space = TaskSpace(shards, config.records_per_task, batch_size=config.data.batch_size)
        else:
            space = TaskSpace(
                shards,
                config.records_per_task,
                epochs=config.data.epochs,
                seed=config.train.seed,
                shuffle=config.data.shuffle,
                batch_size=config.data.batch_size,
                max_steps=config.train.max_steps,
            )
        eval_space = None
        if config.kind == "evaluate":
            eval_space = space
        elif config.kind == "train" and self._scanned is not None and self._scanned.get("eval"):
            eval_space = TaskSpace(
                self._scanned["eval"],
                config.records_per_task,
                batch_size=config.data.batch_size,
            )
            if not eval_space.total:
                raise UsageError("--eval-data: no records in there; name data that has some")
        if eval_space is not None:
            self.evaluations = Evaluations(
                eval_space,
                every=config.train.eval_every,
                lease_ids=self._lease_ids,
                timeout_s=timeout_s,
            )
        if config.kind != "evaluate":
            kind = pb.TASK_TRAIN if config.kind == "train" else pb.TASK_PREDICT
            queue = TaskQueue(space, lease_ids=self._lease_ids, timeout_s=timeout_s)
            self.main = Pass(kind, queue)
        if config.kind == "train":
            self.train_shards = shards
            if self._resumed is not None:
                self._restore(self._resumed)
                self.saves.resumed_at_end(space.total_steps)
        self.tell(
            "info",
            f"{space.total_records:,} records in {space.total:,} tasks, {len(shards)} files",
            now,
        )

    def report_model(
        self, request: pb.ReportModelRequest, now: float
    ) -> pb.ReportModelResponse | None:
        """A worker tells what the model file holds; the first one decides the strategy.

        Returns None while the servers start or the data is scanned.
        """
        if request.error:
            self.fail(request.error, now, traceback=request.traceback, usage=True)
        if self.outcome is not None:
            return pb.ReportModelResponse(ready=False)
        if self._model is None:
            self._model = request
            try:
                choice = self._choose(request)
            except UsageError as error:
                self.fail(str(error), now, usage=True)
                return pb.ReportModelResponse(ready=False)
            self.reason = choice.reason
            if not self.fleet.strategy:
                self.fleet.decide(choice.name, restore=self._restore_point()[0])
            self.tell("info", f"strategy {choice.name}: {choice.reason}", now)
            self._begin(now)
        cluster = self.cluster()
        if cluster is None or not self.ready:
            return None
        self.fleet.ready(request.worker_id)
        return pb.ReportModelResponse(
            ready=True,
            strategy=self.fleet.strategy,
            reason=self.reason,
            cluster=cluster,
            torch_threads=self.torch_threads(),
        )

    def _choose(self, model: pb.ReportModelRequest) -> Choice:
        return choose(
            self.config.train.strategy,
            [
                EmbeddingSize(
                    name=e.name, num_embeddings=e.num_embeddings, dim=e.dim, dynamic=e.dynamic
                )
                for e in model.embeddings
            ],
            max_workers=self.fleet.workers_wanted,
            large_embedding=self.config.train.large_embedding,
            # Nothing is optimized in an evaluation or a prediction.
            optimizer_error=model.optimizer_error if self.config.kind == "train" else "",
        )

    def start(self, now: float) -> None:
        """The master listens: what is certain to be needed starts at once."""
        if self.config.train.strategy == "local":
            try:
                self._choose(pb.ReportModelRequest())
            except UsageError as error:
                self.fail(str(error), now, usage=True)
        if self.config.train.strategy == "ps":
            self.fleet.decide("ps", restore=self._restore_point()[0])
        if self._resumed is not None:
            self.tell("info", f"going on from {self._resumed.path}", now)
        elif self.config.checkpoint.resume:
            self.tell("warning", "no checkpoint yet: starting afresh", now)

    # ---- events of workers and servers ----

    def register(self, request: pb.RegisterRequest, now: float) -> pb.RegisterResponse:
        """A worker is there.

        Raises:
            UsageError: it is none of this job's, or was given up.
        """
        known = self.fleet.registered(request.worker_id, now)
        if not known or not self.members.register(
            request.worker_id, request.pid, request.host, now
        ):
            raise UsageError(f"worker {request.worker_id}: not one that this job waits for")
        return pb.RegisterResponse(config_json=self.config.to_json())

    def register_server(self, request: pb.RegisterServerRequest, now: float) -> None:
        """A server listens.

        Raises:
            UsageError: it is none of this job's, or of an earlier life.
        """
        if not self.fleet.server_registered(
            request.shard, request.incarnation, request.address, request.pid
        ):
            raise UsageError(
                f"server of shard {request.shard}, incarnation {request.incarnation}: not one "
                "that this job waits for"
            )
        if self.fleet.addresses is not None:
            self.tell("info", f"{len(self.fleet.addresses)} parameter servers are ready", now)

    def heartbeat(self, request: pb.HeartbeatRequest, now: float) -> pb.HeartbeatResponse:
        """A worker lives."""
        member = self.members.get(request.worker_id)
        if member is None:
            return pb.HeartbeatResponse(known=False, drain=True)
        moved = self.members.heartbeat(
            request.worker_id,
            now,
            phase=request.phase,
            steps=request.steps,
            records=request.records,
            loss=request.loss,
        )
        if moved:
            for each in self._passes():
                each.queue.touch(request.worker_id, now)
            if request.steps:
                self.fleet.trained(request.worker_id)
        return pb.HeartbeatResponse(
            known=True,
            drain=member.draining or self.outcome is not None,
            incarnation=self.fleet.incarnation,
        )

    def lease(self, request: pb.LeaseRequest, now: float) -> pb.LeaseResponse | None:
        """Tasks for a worker; None if there are none now but may be later."""
        member = self.members.get(request.worker_id)
        if member is None:
            return self._answer(pb.LeaseResponse.DRAIN)
        if self.outcome is not None:
            return self._answer(pb.LeaseResponse.FINISHED)
        cluster = self.cluster()
        if cluster is None or not self.ready:
            return None
        if request.incarnation != cluster.incarnation:
            answer = self._answer(pb.LeaseResponse.CLUSTER_CHANGED)
            answer.cluster.CopyFrom(cluster)
            return answer
        for each in self._passes():
            each.queue.keep_only(request.worker_id, request.held)
        if member.draining:
            return self._answer(pb.LeaseResponse.DRAIN)
        leases: list[pb.LeaseMessage] = []
        for each in self._passes():
            while len(leases) < max(1, request.want):
                lease = each.queue.lease(request.worker_id, now)
                if lease is None:
                    break
                self._leased(each)
                leases.append(each.message(lease))
        if not leases:
            return None
        if self.first_lease_at is None:
            self.first_lease_at = now
        answer = self._answer(pb.LeaseResponse.LEASED)
        answer.leases.extend(leases)
        return answer

    def _leased(self, each: Pass) -> None:
        if each is self._snapshot and self.main is not None:
            # What is done now is in the model of the worker when it writes it.
            self._snapshot_base = self.main.queue.progress()

    def waiting(self) -> pb.LeaseResponse:
        """The answer when there was nothing to lease for a while."""
        return self._answer(pb.LeaseResponse.WAIT)

    def _answer(self, next: pb.LeaseResponse.Next) -> pb.LeaseResponse:
        retired = self.main.queue.retired_before if self.main is not None else 0
        return pb.LeaseResponse(next=next, retired_before=retired)

    def _passes(self) -> list[Pass]:
        """All passes that run, the most urgent first."""
        passes = [self._snapshot] if self._snapshot is not None else []
        if self.evaluations is not None:
            passes += self.evaluations.passes()
        if self.main is not None:
            passes.append(self.main)
        return passes

    def report_task(self, request: pb.ReportTaskRequest, now: float) -> pb.ReportTaskResponse:
        """A worker tells what became of a task."""
        if self.outcome is not None:
            return pb.ReportTaskResponse(known=False)
        for each in self._passes():
            if request.outcome == pb.ReportTaskRequest.DONE:
                lease = each.queue.complete_lease(request.lease_id, now)
                if lease is not None:
                    self._task_done(each, lease, request, now)
            elif request.outcome == pb.ReportTaskRequest.RELEASED:
                lease = each.queue.release(request.lease_id, now, committed=request.records)
            else:
                lease = self._task_failed(each, request, now)
            if lease is not None:
                self._count(each, request, now)
                return pb.ReportTaskResponse(known=True)
        return pb.ReportTaskResponse(known=False)

    def _count(self, each: Pass, request: pb.ReportTaskRequest, now: float) -> None:
        self.damaged += request.damaged
        self.nan_steps += request.nan_steps
        own = each is self.main
        self.members.reported(
            request.worker_id,
            now,
            steps=request.steps if own else 0,
            records=request.records if own else 0,
        )
        if request.outcome == pb.ReportTaskRequest.DONE:
            self.fleet.trained(request.worker_id)

    def _task_done(
        self, each: Pass, lease: Lease, request: pb.ReportTaskRequest, now: float
    ) -> None:
        try:
            if each.kind == pb.TASK_EVALUATE and self.evaluations is not None:
                self.evaluations.evaluated(lease.task.id, request.metrics)
            elif each.kind == pb.TASK_SUMMARIZE and self.evaluations is not None:
                self._evaluated(self.evaluations.summarized(request.values), now)
            elif each.kind == pb.TASK_SNAPSHOT:
                self._snapshot_written(each, request)
        except UsageError as error:
            self.fail(str(error), now, usage=True)

    def _task_failed(self, each: Pass, request: pb.ReportTaskRequest, now: float) -> Lease | None:
        failed = each.queue.fail(request.lease_id, now, committed=request.records)
        if failed is None:
            return None
        lease, count = failed
        if each.kind == pb.TASK_SNAPSHOT and not request.fatal:
            self._snapshot = None
            self.save_failed(request.error, self.fleet.incarnation, now)
            return lease
        limit = self.config.cluster.max_task_failures
        if request.fatal or count >= limit:
            self.fail(request.error, now, traceback=request.traceback)
        else:
            self.tell(
                "warning",
                f"worker-{request.worker_id}: {request.error}; failure "
                f" {count} of {limit} of this task, trying it again",
                now,
            )
        return lease

    def exited(self, exit: ProcessExit, now: float, *, log: str) -> None:
        """A process ended."""
        result = self.fleet.exited(exit, now, log=log)
        if exit.role == "worker":
            self._drop(exit.id)
        if self.outcome is not None or result is None:
            return
        if isinstance(result, CrashLoop):
            self.fail(result.text, now)
        elif isinstance(result, ServersGone):
            self._renew(result.text, now)
        elif result.expected:
            self.tell("info", f"{result.text}, as asked", now)
        elif self.fleet.strategy == "local" and self.config.kind == "train":
            self._renew(result.text, now)
        else:
            self.tell("warning", f"{result.text}; its tasks go to others", now)

    def _drop(self, worker: int) -> None:
        self.members.remove(worker)
        for each in self._passes():
            each.queue.drop_worker(worker)

    # ---- events of the user ----

    def scale(self, request: pb.ScaleRequest, now: float) -> str:
        """Keep another number of workers from now on.

        Raises:
            UsageError: that cannot be.
        """
        if self.outcome is not None:
            raise UsageError("the job is over: there is nothing to scale")
        check_scale(request.min_workers, request.max_workers, strategy=self.fleet.strategy)
        before = self.fleet.workers_wanted
        self.fleet.scale(request.max_workers)
        text = f"workers: {before} before, {request.max_workers} from now on"
        self.tell("info", text, now)
        return text

    def stop(self, reason: str, now: float, *, exit_code: int = 143) -> None:
        """Somebody wants it to end."""
        if self.outcome is None:
            self.tell("warning", f"stopping: {reason}", now)
            self._end(Outcome("stopped", exit_code, error=reason), now, leave_s=0.0)

    def fail(self, error: str, now: float, *, traceback: str = "", usage: bool = False) -> None:
        """It cannot go on; the first cause counts."""
        if self.outcome is None:
            self.tell("error", error, now)
            outcome = Outcome("failed", 2 if usage else 1, error, traceback, usage)
            self._end(outcome, now, leave_s=0.0)

    def _end(self, outcome: Outcome, now: float, *, leave_s: float) -> None:
        self.outcome = outcome
        self.fleet.end(now, leave_s=leave_s)

    def tell(self, level: str, text: str, now: float) -> None:
        """Notes an event for the user."""
        self.events.add(level, text, now + self._wall_offset_s)

    # ---- time ----

    def tick(self, now: float) -> list[Action]:
        """What is to be done now."""
        if self.outcome is None:
            self._give_up_silent(now)
            self._advance(now)
        for id in self.fleet.draining():
            self.members.drain(id)
        actions: list[Action] = list(self.fleet.plan(now))
        effects, self._effects = self._effects, []
        if self.outcome is not None and not self.over and not self.fleet.alive():
            self.over = True
        return actions + list(effects)

    def _give_up_silent(self, now: float) -> None:
        timeout_s = self.config.cluster.heartbeat_timeout_s
        for member in self.members.silent(now):
            self._give_up(member.id, f"silent for {timeout_s:g} s", now)
        timeout_s = self.config.cluster.task_timeout_s
        for each in self._passes():
            for worker in each.queue.expire(now):
                self._give_up(worker, f"without a step for {timeout_s:g} s", now)

    def _give_up(self, worker: int, why: str, now: float) -> None:
        self.tell("warning", f"worker-{worker} is given up: {why}", now)
        self._drop(worker)
        self.fleet.lost(worker)

    def _advance(self, now: float) -> None:
        if not self.ready:
            return
        records, steps = self.done()
        self.rates.sample(now, records, steps)
        self._note_epoch(now)
        trained = self.trained
        if trained and self.trained_at is None and self.main is not None:
            self.trained_at = now
        cluster = self.cluster()
        if cluster is None:
            return
        settled = trained and self._settle(cluster)
        if self.evaluations is not None and (settled or not trained):
            result = self.evaluations.tick(steps, trained=settled)
            if result is not None:
                self._evaluated(result, now)
        if self.config.kind == "train":
            self._save(cluster, steps, settled, now)
        if settled and self._all_done():
            self.trained_at = self.trained_at if self.trained_at is not None else now
            self._end(Outcome("finished", 0), now, leave_s=_LEAVE_S)
            self.tell("info", "finished", now)

    def _note_epoch(self, now: float) -> None:
        if self.main is None or self.main.kind != pb.TASK_TRAIN:
            return
        epoch = self.main.queue.epoch
        for done in range(self._epoch, epoch):
            self.tell("info", f"epoch {done + 1} of {self.config.data.epochs} is done", now)
        self._epoch = epoch

    def _settle(self, cluster: pb.Cluster) -> bool:
        """All training is done: in sync mode the servers still apply what they hold back."""
        if self.fleet.strategy != "ps" or self.config.kind != "train":
            return True
        if not self._flush:
            self._flush = "running"
            self._effects.append(Flush(list(cluster.servers), cluster.incarnation))
        return self._flush == "done"

    def _save(self, cluster: pb.Cluster, steps: int, settled: bool, now: float) -> None:
        assert self.main is not None
        if self.saves.due(steps, settled=settled, now=now):
            if self.fleet.strategy == "ps":
                self._effects.append(
                    SaveServers(
                        list(cluster.servers), cluster.incarnation, self.main.queue.progress()
                    )
                )
            else:
                self._snapshots += 1
                directory = self.saves.root / f".snapshot-{self._snapshots}"
                self._effects.append(MakeFolder(directory, cluster.incarnation))
        if self.saves.final is not None and not self._output:
            self._output = "running"
            output = Path(self.config.checkpoint.output)
            self._effects.append(WriteOutput(self.saves.final.path, output))

    def _all_done(self) -> bool:
        evaluated = self.evaluations is None or self.evaluations.complete
        if self.config.kind != "train":
            return evaluated
        return evaluated and self.saves.complete and self._output == "done"

    def _evaluated(self, result: Result, now: float) -> None:
        text = ", ".join(f"{name} {value:.6g}" for name, value in sorted(result.metrics.items()))
        self.tell("info", f"evaluation at step {result.steps}: {text}", now)

    # ---- checkpoints, and going back to them ----

    def folder_made(self, directory: Path, incarnation: int) -> None:
        """The worker of the strategy ``local`` can write there."""
        if incarnation == self.fleet.incarnation and self.saves.running:
            self._snapshot = errand(
                pb.TASK_SNAPSHOT,
                "snapshot",
                lease_ids=self._lease_ids,
                timeout_s=self.config.cluster.task_timeout_s,
                directory=str(directory),
            )

    def _snapshot_written(self, each: Pass, request: pb.ReportTaskRequest) -> None:
        self._snapshot = None
        told = {mark.task_id: mark.offset for mark in request.marks.tasks}
        self._effects.append(
            CommitLocal(
                Path(each.directory),
                dict(zip(request.files, request.sizes, strict=True)),
                union([self._snapshot_base, Progress(request.marks.retired_before, told)]),
                request.version,
                self.fleet.incarnation,
            )
        )

    def saved(self, saved: Saved, incarnation: int, now: float) -> None:
        """A checkpoint is complete."""
        if incarnation != self.fleet.incarnation:
            # It is of a model that is gone, but a good one all the same; the next is newer.
            return
        self.saves.done(saved)
        if self.config.checkpoint.dir:
            self.tell("info", f"checkpoint {saved.path}", now)

    def save_failed(self, error: str, incarnation: int, now: float) -> None:
        """A checkpoint came to nothing."""
        if incarnation != self.fleet.incarnation or not self.saves.running:
            return
        give_up = self.saves.failed(now)
        if give_up:
            self.fail(f"the trained model cannot be saved in {self.saves.root}: {error}", now)
        else:
            self.tell("warning", f"no checkpoint this time, trying again later: {error}", now)

    def flushed(self, incarnation: int) -> None:
        """The servers applied everything."""
        if incarnation == self.fleet.incarnation:
            self._flush = "done"

    def flush_failed(self, incarnation: int) -> None:
        """They did not: again."""
        if incarnation == self.fleet.incarnation:
            self._flush = ""

    def written(self, error: str, now: float) -> None:
        """The trained model is written, or not."""
        output = self.config.checkpoint.output
        if error:
            self.fail(f"--output {output}: the model cannot be written: {error}", now)
        elif self._output == "running":
            self._output = "done"
            self.tell("info", f"model written to {output}", now)

    def _restore_point(self) -> tuple[str, Saved | None]:
        """What a new life of the model loads, and the checkpoint that this is, if it is one."""
        newest = self.saves.newest
        if newest is not None:
            return str(newest.path), newest
        return self.config.checkpoint.load, None

    def _renew(self, text: str, now: float) -> None:
        """The model is lost: begin again from the newest checkpoint."""
        restore, saved = self._restore_point()
        point = restore or "the beginning: there is no checkpoint"
        what = "servers" if self.fleet.strategy == "ps" else "the worker"
        for each in self._passes():
            each.queue.void()
        self.fleet.renew(restore=restore)
        self.members.forget_open_work()
        if self.config.kind != "train":
            self.tell("error", f"{text}; starting {what} again", now)
            return
        self.tell("error", f"{text}; starting {what} again from {point}", now)
        self._snapshot = None
        self.saves.restore()
        self._flush = "" if self.config.train.mode == "sync" else "done"
        if self._output == "running":
            self._output = ""
        self.trained_at = None
        self._restore(saved)

    def _restore(self, saved: Saved | None) -> None:
        if self.main is not None:
            self.main.queue.restore(saved.progress if saved is not None else Progress())
            self._epoch = self.main.queue.epoch
            if self.first_lease_at is None:
                self.records_before = self.main.queue.records_done
        if self.evaluations is not None:
            self.evaluations.restore(saved.manifest.steps if saved is not None else 0)
