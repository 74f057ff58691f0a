"""The job: one state machine over tasks, workers, processes, evaluations and checkpoints. Pure.

Every method is an event with the time at which it happened; the service calls them under its
lock. :meth:`Job.tick` returns what is to be done in the world; what came of it comes back as
another event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from master.state.actions import (
    Action,
    Contents,
    Failure,
    FolderMade,
    JobEvent,
    Note,
    NotStarted,
    Saved,
    Started,
)
from master.state.checkpoint_manager import CheckpointManager
from master.state.data_identity import check_prefix, identity, nothing_left
from master.state.evaluation import Result
from master.state.fleet import Fleet
from master.state.left_out import LeftOut
from master.state.lifecycle import Lifecycle
from master.state.membership import Member, Membership
from master.state.outcome import WHO_STARTS_AGAIN, Outcome, Restoring, choose_strategy
from master.state.processes import CrashLoop, ServersGone, check_scale
from master.state.ring_coordinator import Lockstep
from master.state.stopping import Stopping
from master.state.task_scheduler import Work
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard
from torch_edl.errors import UsageError
from torch_edl.processes.base import ProcessExit
from torch_edl.wire import master_pb2 as pb

_LEAVE_S = 10.0
# However many epochs there are, at most so many ends of one are told.
_EPOCHS_TOLD = 10


class Job(Lifecycle):
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
        super().__init__(fleet, wall_offset_s=wall_offset_s)
        self.config = config
        self.members = Membership(heartbeat_timeout_s=config.cluster.heartbeat_timeout_s)
        self.checkpoints = CheckpointManager(config, folder=folder, resumed=resumed)
        self.work = Work(config, resumed=resumed)
        self.lockstep = Lockstep(
            fleet,
            self.members,
            self.work,
            min_workers=config.cluster.min_workers,
            renew=self._renew,
            formed=self._ring_formed,
        )
        self.reason = ""
        self.damaged = 0
        self.left_out = LeftOut()
        self.records_before = 0
        """Records that were done before this run."""
        self._cores = cores
        self._scanned: Mapping[str, Sequence[Shard]] | None = None
        self._scan_error = ""
        self._model: pb.ReportModelRequest | None = None
        self._epoch = 0

    # ---- what it says ----

    def done(self) -> tuple[int, int]:
        """(records, minibatches): of finished tasks, and what workers told of running ones."""
        return self.work.done(self.members)

    def cluster(self) -> pb.Cluster | None:
        """The servers of today; None while they start."""
        addresses = self.fleet.addresses
        if addresses is None:
            return None
        return pb.Cluster(
            incarnation=self.fleet.incarnation,
            servers=addresses,
            restored_from=self.fleet.restored_from,
            values_only=self.fleet.values_only,
        )

    def contents(self) -> Contents:
        """What the manifest of a checkpoint says besides what is in it."""
        assert self.work.main is not None
        return Contents(
            job=self.config.name,
            strategy=self.fleet.strategy,
            data=identity(self.config, self.work.shards, self.work.files),
            space=self.work.main.queue.space,
        )

    # ---- events of the data and the model ----

    def scanned(
        self,
        shards: Mapping[str, Sequence[Shard]],
        now: float,
        *,
        damaged: int = 0,
        error: str = "",
    ) -> None:
        """The sources are counted: ``train``, ``eval`` and ``predict`` to their shards.

        An error counts only if the model file brings no source of its own.
        """
        self._scanned, self._scan_error = shards, error
        self.damaged += damaged
        if damaged:
            self.tell("warning", f"damaged records left out: {damaged:,}", now)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Makes the queues once everything about the data is known."""
        if self._scanned is None or self._model is None or self.work.ready:
            return
        try:
            if self.work.lockstep and self.checkpoints.newest is not None:
                check_prefix(self.checkpoints.newest)
            text = self.work.begin(self._scanned, self._scan_error, self._model)
        except UsageError as error:
            self.fail(str(error), now, usage=True)
            return
        self._begun(text, now)

    def _begun(self, text: str, now: float) -> None:
        """The queues are made."""
        if self.work.main is not None and self.config.trains:
            queue = self.work.main.queue
            if self.checkpoints.resume_at_end(queue.space.total_steps):
                self.tell("warning", nothing_left(self.config), now)
            self.records_before = queue.records_done
            self.left_out.begin(queue.space.total_records - queue.records_done)
            self._epoch = queue.epoch
        self.tell("info", text, now)

    def report_model(self, request: pb.ReportModelRequest, now: float) -> pb.ReportModelResponse:
        """A worker reports what it trains; the first report decides the strategy."""
        if self.outcome is None and self._model is None:
            self._model = request
            try:
                choice = choose_strategy(self.config, request, workers=self.fleet.workers_wanted)
                if not self.fleet.strategy:
                    self._decide(choice.name)
            except UsageError as error:
                self.fail(str(error), now, usage=True)
            else:
                self.reason = choice.reason
                self.work.lockstep = choice.name == "allreduce"
                self.tell("info", f"strategy {choice.name}: {choice.reason}", now)
                self._begin(now)
        return pb.ReportModelResponse()

    def report_failure(
        self, request: pb.ReportFailureRequest, now: float
    ) -> pb.ReportFailureResponse:
        """A worker failed in a way in which every worker would fail."""
        self.fail(request.error, now, traceback=request.traceback, usage=not request.running)
        return pb.ReportFailureResponse()

    def wait_until_ready(
        self, request: pb.WaitUntilReadyRequest, now: float
    ) -> pb.WaitUntilReadyResponse | None:
        """What a worker begins with; None while the servers start or the data is scanned."""
        if self.outcome is not None:
            return pb.WaitUntilReadyResponse(leave=True)
        cluster = self.cluster()
        if self._model is None or cluster is None or not self._is_ready():
            return None
        self.fleet.ready(request.worker_id)
        shards = self.work.shards if self.work.lockstep else ()
        cores = self._cores // max(1, self.fleet.workers_wanted)
        start = pb.Start(
            strategy=self.fleet.strategy,
            reason=self.reason,
            cluster=cluster,
            torch_threads=self.config.cluster.worker_threads or max(1, cores),
            shards=[pb.SourceShard(**dataclasses.asdict(shard)) for shard in shards],
        )
        return pb.WaitUntilReadyResponse(start=start)

    def _is_ready(self) -> bool:
        """Whether a worker may begin, once the servers are up."""
        return self.work.ready

    def _decide(self, strategy: str) -> None:
        """The strategy is known."""
        self.fleet.decide(strategy, **self._restoring())

    def start(self, now: float) -> None:
        """The master listens: what is certain to be needed starts at once."""
        if self.config.train.strategy == "local":
            try:
                nothing = pb.ReportModelRequest()
                choose_strategy(self.config, nothing, self.fleet.workers_wanted)
            except UsageError as error:
                self.fail(str(error), now, usage=True)
        if self.config.train.strategy == "ps" and not self.fleet.strategy:
            self._decide("ps")
        if self.checkpoints.newest is not None:
            self.tell("info", f"going on from {self.checkpoints.newest.path}", now)
        elif self.config.checkpoint.resume:
            self.tell("warning", "no checkpoint yet: starting afresh", now)

    # ---- events of processes ----

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
            count = len(self.fleet.addresses)
            text = "the parameter server is" if count == 1 else f"{count} parameter servers are"
            self.tell("info", f"{text} ready", now)

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
        elif self.stopping is not None:
            return
        elif result.expected:
            self.tell("info", f"{result.text}, as asked", now)
        elif self.fleet.strategy == "local" and self.config.kind == "train":
            self._renew(result.text, now)
        else:
            rest = "the others go on" if self.work.lockstep else "its tasks go to others"
            self.tell("warning", f"{result.text}; {rest}", now)
        alive = len(self.fleet.alive("worker"))
        if exit.role == "worker" and alive < self.config.cluster.min_workers:
            wanted = self.config.cluster.min_workers
            left = f"{alive} worker{'s' * (alive != 1)} left"
            self.tell("warning", f"{left}, at least {wanted} wanted: waiting", now)

    def _drop(self, worker: int) -> None:
        self.members.remove(worker)
        self.work.drop_worker(worker)
        self.lockstep.ring.drop(worker)

    def left_ring(self, member: Member, now: float, *, finished: bool, ends: bool = False) -> None:
        """A worker does not come along into the next ring."""
        self.lockstep.ring.leave(member.id, now)

    def checkpoint_written(self, directory: str, now: float) -> None:
        """A member wrote a checkpoint by itself; those of model files are errands instead."""

    def _restoring(self) -> Restoring:
        """What a life of the model begins with."""
        kept = self.checkpoints
        return {"restore": kept.restore_from, "values_only": kept.values_only}

    def _renew(self, text: str, now: float) -> None:
        """The model is lost: begin again from the newest checkpoint."""
        if self.stopping is not None:
            self._stopped(now, text)
            return
        restore = self._restoring()["restore"]
        what = WHO_STARTS_AGAIN[self.fleet.strategy]
        point = restore or "the beginning, there is no checkpoint"
        self.work.void()
        self.fleet.renew(**self._restoring())
        self.members.forget_open_work()
        if self.config.trains:
            self._course.trained_at = None
            self.work.restore(self.checkpoints.restore(self.fleet.incarnation))
            if self.work.main is not None:
                queue = self.work.main.queue
                self._epoch = queue.epoch
                self.left_out.begin(queue.space.total_records - queue.records_done)
        self.tell("error", f"{text}; starting {what} again from {point}", now)

    # ---- events of the user ----

    def scale(self, request: pb.ScaleRequest, now: float) -> str:
        """Keep another number of workers from now on.

        Raises:
            UsageError: that cannot be.
        """
        if self.outcome is not None or self.stopping is not None:
            raise UsageError("the job is over: there is nothing to scale")
        check_scale(request.min_workers, request.max_workers, strategy=self.fleet.strategy)
        before = self.fleet.workers_wanted
        self.fleet.scale(request.max_workers)
        text = f"workers: {before} before, {request.max_workers} from now on"
        self.tell("info", text, now)
        return text

    def _begin_to_stop(self, now: float) -> bool:
        """See :meth:`Lifecycle._begin_to_stop`."""
        if not self._has_more_than_is_kept():
            return False
        assert self.stopping is not None
        self.fleet.retire(now, by=self.stopping.leave_by)
        for member in self.members:
            member.draining = True
        self.checkpoints.stop()
        return True

    def _has_more_than_is_kept(self) -> bool:
        """Whether a checkpoint of now would hold more than the one that the job began with."""
        keeps = self.config.checkpoint.dir and self.config.trains and not self.checkpoints.complete
        return bool(keeps) and self.work.ready and self.done()[0] > self.records_before

    def _heed_stopping(self, stopping: Stopping, now: float) -> None:
        """Who should keep the model and does not holds nobody up for long."""
        awaits = self._awaits_model
        problem = stopping.problem(now, workers=len(self.members), awaits_model=awaits)
        if problem:
            self._stopped(now, problem)

    @property
    def _awaits_model(self) -> bool:
        """Whether a worker is to write the model that only workers have, and none does."""
        return self.work.awaits_snapshot

    def _settles(self, now: float) -> bool:
        """Whether nothing is trained any more: all is done, or all who did have left."""
        if self.stopping is None:
            return self._trained()
        # Who has the model in its own process writes it while it leaves.
        left = self.fleet.strategy != "ps" or not len(self.members)
        return left or now >= self.stopping.leave_by

    # ---- time ----

    def tick(self, now: float) -> list[Action]:
        """What is to be done now."""
        if self.outcome is None:
            self._give_up_silent(now)
            self.lockstep.form(now)
            self._advance(now)
        if self.outcome is None and self.stopping is not None:
            self._heed_stopping(self.stopping, now)
        actions: list[Action] = list(self.fleet.plan(now))
        for id in self.fleet.draining():
            if self.lockstep.may_drain(id):
                self.members.drain(id)
        self.over = self.outcome is not None and not self.fleet.alive()
        return actions + self.checkpoints.take_actions()

    def _give_up_silent(self, now: float) -> None:
        timeout_s = self.config.cluster.heartbeat_timeout_s
        for member in self.members.silent(now):
            self._give_up(member.id, f"silent for {timeout_s:g} s", now)
        timeout_s = self.config.cluster.task_timeout_s
        for worker in self.work.expire(now):
            self._give_up(worker, f"without a step for {timeout_s:g} s", now)

    def _give_up(self, worker: int, why: str, now: float) -> None:
        self.tell("warning", f"worker-{worker} is given up: {why}", now)
        self._drop(worker)
        self.fleet.lost(worker)

    def _advance(self, now: float) -> None:
        """Evaluates, saves and ends when it is time."""
        if not self.work.ready:
            return
        records, steps = self.done()
        self.rates.sample(now, records, steps)
        self._note_epoch(now)
        trained = self._settles(now)
        if trained and self.work.main is not None:
            if self.left_out.is_all:
                self.fail(self.left_out.text, now)
                return
            self._course.trained(now)
        cluster = self.cluster()
        if cluster is None:
            return
        settled = self.checkpoints.settle(cluster, trained=trained)
        evaluations = self.work.evaluations
        stopping = self.stopping is not None
        if evaluations is not None and settled == trained and not stopping:
            result = evaluations.tick(steps, trained=settled)
            if result is not None:
                self.evaluated(result, now)
        trains = self.work.main is not None and self.config.trains
        if trains and self.checkpoints.due(steps, settled=settled, now=now):
            assert self.work.main is not None
            progress, contents = self.work.main.queue.progress(), self.contents()
            self.checkpoints.take(cluster, progress, contents, steps=steps, settled=settled)
        evaluated = evaluations is None or evaluations.complete
        if stopping and settled and self.checkpoints.complete:
            self._kept(now)
        elif settled and evaluated and self.checkpoints.complete:
            self._course.trained(now)
            self._work_over(now)

    def _trained(self) -> bool:
        """Nothing is left to be trained on."""
        return self.work.trained

    def _kept(self, now: float) -> None:
        """The last checkpoint is written; what it holds is what the job has done."""
        newest = self.checkpoints.newest
        if newest is not None and self.work.main is not None:
            self.work.main.queue.restore(newest.progress)
        self._stopped(now)

    def _work_over(self, now: float) -> None:
        """Everything is trained, evaluated, saved and written."""
        if self.left_out.text:
            self.tell("warning", self.left_out.text, now)
        self.tell("info", "finished", now)
        self._end(Outcome("finished", 0), now, leave_s=_LEAVE_S)

    def _note_epoch(self, now: float) -> None:
        if self.work.main is None or not self.config.trains:
            return
        epoch, epochs = self.work.main.queue.epoch, self.config.data.epochs
        every = -(-epochs // _EPOCHS_TOLD)
        for done in range(self._epoch + 1, epoch + 1):
            if done % every == 0 or done == epochs:
                self.tell("info", f"epoch {done:,} of {epochs:,} is done", now)
        self._epoch = epoch

    def evaluated(self, result: Result, now: float) -> None:
        """An evaluation is over."""
        text = ", ".join(f"{name} {value:.6g}" for name, value in sorted(result.metrics.items()))
        self.tell("info", f"evaluation at step {result.steps}: {text}", now)

    def _ring_formed(self, text: str, now: float) -> None:
        self.tell("info", text, now)
        self.leased(now)

    def apply(self, event: JobEvent, now: float) -> None:
        """Takes what came of an action, or what a part of the job says."""
        match event:
            case Note():
                self.tell(event.level, event.text, now, event.traceback)
            case Failure():
                self.fail(event.error, now, traceback=event.traceback, usage=event.usage)
            case Started():
                self.fleet.started(event.role, event.id, event.pid)
            case NotStarted():
                self.fleet.not_started(event.role, event.id, event.error)
                self.fail(f"{event.role}-{event.id} cannot be started: {event.error}", now)
            case FolderMade():
                if self.checkpoints.expects_snapshot(event.incarnation):
                    self.work.ask_for_snapshot(str(event.directory))
            case _:
                for each in self.checkpoints.apply(event, now):
                    self.apply(each, now)
