"""The job: one state machine, composed of a workload, a workforce, a ring and checkpoints. Pure.

Every method is an event with the time at which it happened; the service calls them under its lock.
:meth:`Job.tick` returns what is to be done in the world; what came of it comes back through
:meth:`Job.apply`. A model file and a script differ in the workload and the workforce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from master.state.actions import (
    Action,
    CheckpointFailed,
    DataScanned,
    EffectEvent,
    Failure,
    FolderMade,
    Note,
    NotStarted,
    Saved,
    Started,
)
from master.state.checkpoint_manager import CheckpointManager
from master.state.data_identity import check_strategy, with_data
from master.state.evaluation import EvaluationResult
from master.state.fleet import Fleet
from master.state.lifecycle import LEAVE_WITHIN_S, Lifecycle, Part, Stopping
from master.state.membership import Membership
from master.state.milestones import Kept, MilestoneEvent, Milestones, Trained
from master.state.preparation import Preparation
from master.state.processes import CrashLoop, ServersGone
from master.state.ring_coordinator import RingCoordinator
from master.state.script_workforce import ScriptWorkforce
from master.state.task_scheduler import SnapshotWritten, TaskFailed, TaskScheduler
from master.state.workforce import (
    Finished,
    LaunchedWorkforce,
    RoundFormed,
    StopRequested,
    WorkerLost,
    Workforce,
    WorkforceEvent,
)
from master.state.workload import ScriptProgress, Workload
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.processes.base import ProcessExit
from torch_edl.wire import master_pb2 as pb

_RESTARTED = {"ps": "the servers", "local": "the worker", "allreduce": "the workers"}

JobEvent = (
    Started | NotStarted | DataScanned | EffectEvent | SnapshotWritten | TaskFailed | MilestoneEvent
    | WorkforceEvent
)  # fmt: skip


class Job:
    """One job.

    Args:
        fleet: its processes, none of them started yet.
        folder: of the job, for what is temporary.
        resumed: the checkpoint to go on from.
        wall_offset_s: Unix time minus the clock of the events.
    """

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        *,
        folder: Path,
        resumed: Saved | None = None,
        wall_offset_s: float = 0.0,
    ) -> None:
        script, cluster = config.kind == "script", config.cluster
        self.config = config
        self.fleet = fleet
        self.lifecycle = Lifecycle(wall_offset_s=wall_offset_s)
        self.members = Membership(heartbeat_timeout_s=cluster.heartbeat_timeout_s)
        self.checkpoints = CheckpointManager(config, folder=folder, resumed=resumed)
        self.tasks = TaskScheduler(config)
        """What workers lease; nothing, where a script goes through its data in a ring."""
        self.workload: Workload = ScriptProgress() if script else self.tasks
        self.agents = ScriptWorkforce(config, fleet, self.members) if script else None
        """The workforce, where agents or torchrun start the workers."""
        self.workforce: Workforce = self.agents or LaunchedWorkforce(fleet)
        self.ring = RingCoordinator(self.members, self.tasks, min_workers=cluster.min_workers)
        self.preparation = Preparation(config, self.tasks, resumed=resumed)
        self.milestones = Milestones(config, self.tasks, self.checkpoints)
        self.damaged = 0
        self.reason = "a training script" if script else ""
        """Why the strategy was chosen."""
        self.changed = False
        """Workers that wait for a ring or a round have an answer."""

    # ---- queries ----

    @property
    def state(self) -> str:
        """starting, running, stopping, finishing, finished, failed or stopped."""
        closed = self.workforce.closed and not self.lifecycle.ending
        return "finishing" if closed else self.lifecycle.state

    def done(self) -> tuple[int, int]:
        """(records, minibatches) that are in the model."""
        return self.workload.done(self.members)

    # ---- the model and the data ----

    def start(self, now: float) -> None:
        """The master listens: what is certain to be needed starts at once."""
        if self.fleet.strategy or self.lifecycle.outcome is not None:
            return  # of a master that was started again
        wanted = self.config.train.strategy
        with self._failing(now):
            if wanted == "local":
                self.preparation.choose(pb.ReportModelRequest(), self.fleet.workers_wanted)
            if wanted == "ps" or (wanted == "allreduce" and self.agents is not None):
                self._decide(wanted)
        if self.checkpoints.newest is not None:
            self._note("info", f"training continues from {self.checkpoints.newest.path}", now)
        elif self.config.checkpoint.resume:
            self._note("warning", "no checkpoint yet: training starts from the beginning", now)

    def _scanned(self, event: DataScanned, now: float) -> None:
        self.damaged += event.damaged
        if event.damaged:
            self._note("warning", f"damaged records left out: {event.damaged:,}", now)
        self.preparation.scanned(event)
        with self._failing(now):
            self._begun(self.preparation.make_tasks(), now)

    def model_reported(self, model: pb.ReportModelRequest, now: float) -> None:
        """A worker has reported its model; the first one decides the strategy."""
        if self.lifecycle.outcome is not None or self.preparation.model_is_known:
            return
        self.preparation.reported(model)
        with self._failing(now):
            choice = self.preparation.choose(model, self.fleet.workers_wanted)
            if not self.fleet.strategy:
                self._decide(choice.name)
            self.reason = choice.reason
            self._note("info", f"strategy {choice.name}: {choice.reason}", now)
            self._begun(self.preparation.make_tasks(), now)

    def data_reported(self, data: pb.ScriptData, now: float) -> None:
        """A worker of a script on servers has reported its data; the first one makes the tasks.

        Raises:
            UsageError: the worker reported other data than another, or none that can be counted.
        """
        if self.lifecycle.outcome is not None or not self.preparation.is_new(data):
            return
        config = with_data(self.config, data)
        with self._failing(now):
            text = self.preparation.make_script_tasks(config, data)
            self.config = config
            self._begun(text, now)

    def _decide(self, strategy: str) -> None:
        kept = self.checkpoints
        if kept.newest is not None:
            check_strategy(self.config, kept.newest, strategy)
        self._compose(strategy)
        self.fleet.decide(strategy, restore=kept.restore_from, values_only=kept.values_only)

    def _compose(self, strategy: str) -> None:
        self.tasks.lockstep = strategy == "allreduce"
        if strategy == "ps":
            self.workload = self.tasks

    def _begun(self, text: str, now: float) -> None:
        if text:
            self.apply_all(self.milestones.begun(), now)
            self._note("info", text, now)

    @contextlib.contextmanager
    def _failing(self, now: float) -> Iterator[None]:
        """What the user can mend fails the job."""
        try:
            yield
        except UsageError as error:
            self.lifecycle.fail(str(error), now, usage=True)

    # ---- what came of actions, and what happened in the parts ----

    def apply(self, event: JobEvent, now: float) -> None:
        """Takes an event of a part, or what came of an action."""
        match event:
            case Note():
                self._note(event.level, event.text, now, event.traceback)
            case Failure():
                self.lifecycle.fail(event.error, now, traceback=event.traceback, usage=event.usage)
            case Started():
                self.fleet.started(event.role, event.id, event.pid)
            case NotStarted():
                self.fleet.not_started(event.role, event.id, event.error)
                self.lifecycle.fail(
                    f"{event.role}-{event.id} cannot be started: {event.error}", now
                )
            case FolderMade():
                if self.checkpoints.expects_snapshot(event.incarnation):
                    self.tasks.ask_for_snapshot(str(event.directory))
            case DataScanned():
                self._scanned(event, now)
            case SnapshotWritten():
                self.milestones.snapshot_written(event, self.fleet.strategy)
            case EvaluationResult():
                values = sorted(event.metrics.items())
                text = ", ".join(f"{name} {value:.6g}" for name, value in values)
                self._note("info", f"evaluation at step {event.steps}: {text}", now)
            case TaskFailed():
                self._task_failed(event, now)
            case WorkerLost():
                self._worker_lost(event, now)
            case RoundFormed():
                self.changed = True
                self._note("info", f"round {event.number} of torchrun's nodes", now)
            case Finished():
                self.lifecycle.finish(now, leave_s=event.leave_s)
            case Trained():
                self.lifecycle.trained(now)
            case Kept():
                self.milestones.kept()
                self.lifecycle.stopped(now)
            case StopRequested():
                self.stop(event.reason, now)
            case _:
                self.apply_all(self.checkpoints.apply(event, now), now)

    def apply_all(self, events: Iterable[JobEvent], now: float) -> None:
        """Takes events in their order."""
        for event in events:
            self.apply(event, now)

    def _note(self, level: str, text: str, now: float, traceback: str = "") -> None:
        self.lifecycle.note(level, text, now, traceback)

    def _task_failed(self, event: TaskFailed, now: float) -> None:
        limit = self.config.cluster.max_task_failures
        if event.snapshot and not event.fatal:
            self.apply(CheckpointFailed(event.error, self.fleet.incarnation), now)
        elif event.fatal or event.failures >= limit:
            self.lifecycle.fail(event.error, now, traceback=event.traceback)
        else:
            text = (
                f"worker-{event.worker}: {event.error}; failure {event.failures} of {limit} of "
                "this task, which is tried again"
            )
            self._note("warning", text, now, event.traceback)

    def _worker_lost(self, event: WorkerLost, now: float) -> None:
        member = self.members.get(event.worker)
        if event.ended_well is not None:
            asked = member is not None and member.draining
            self.ring.ring.exited(event.worker, well=event.ended_well and not asked)
        if member is not None and self.lifecycle.outcome is None:
            how = "declared lost" if event.declared else "lost"
            text = f"worker-{event.worker} {how}: {event.why}; {self._others_continue()}"
            self._note("warning", text, now)
        self._drop(event.worker)

    def _others_continue(self) -> str:
        leased = self.tasks.ready and not self.tasks.lockstep
        return "its tasks were returned to the queue" if leased else "the other workers continue"

    def _drop(self, worker: int) -> None:
        self.members.remove(worker)
        self.tasks.drop_worker(worker)
        self.ring.ring.drop(worker)

    def exited(self, exit: ProcessExit, now: float, *, log: str) -> None:
        """A process that the master started has ended."""
        result = self.fleet.exited(exit, now, log=log)
        if exit.role == "worker":
            self._drop(exit.id)
        if self.lifecycle.outcome is not None:
            return
        match result:
            case None:
                return
            case CrashLoop():
                self.lifecycle.fail(result.text, now)
                return
            case ServersGone():
                self._renew(result.text, now)
            case _ if self.lifecycle.stopping is not None:
                return
            case _ if result.expected:
                self._note("info", f"{result.text}, as asked", now)
            case _ if self.fleet.strategy == "local" and self.config.kind == "train":
                self._renew(result.text, now)
            case _:
                self._note("warning", f"{result.text}; {self._others_continue()}", now)
        alive, wanted = len(self.fleet.alive("worker")), self.config.cluster.min_workers
        if exit.role == "worker" and alive < wanted:
            left = f"{alive} worker{'s' * (alive != 1)} left, the minimum is {wanted}"
            self._note("warning", f"{left}: waiting for replacements", now)

    def form_ring(self, now: float) -> bool:
        """Forms the next ring if it is time; returns whether it did."""
        coordinator = self.ring
        if not coordinator.due(now, workers_wanted=self.fleet.workers_wanted):
            return False
        if coordinator.ring.model_lost:
            self._renew("no worker that is left has the model", now)
        formed = coordinator.ring.form(
            restored_from=self.fleet.restored_from, values_only=self.fleet.values_only
        )
        count = len(formed.workers)
        self._note("info", f"ring {formed.number}: {count} worker{'s' * (count != 1)}", now)
        self.lifecycle.began(now)
        self.changed = True
        return True

    def _renew(self, text: str, now: float) -> None:
        """The model is lost: a new incarnation begins from the newest checkpoint."""
        if self.lifecycle.stopping is not None:
            self.lifecycle.stopped(now, text)
            return
        kept = self.checkpoints
        point = kept.restore_from or "the beginning, there is no checkpoint"
        self.tasks.void()
        self.fleet.renew(restore=kept.restore_from, values_only=kept.values_only)
        self.members.forget_open_work()
        if self.config.trains:
            self.lifecycle.resumed()
            self.workload.restore(kept.restore(self.fleet.incarnation))
            self.milestones.restored()
        who = _RESTARTED[self.fleet.strategy]
        self._note("error", f"{text}; {who} restart from {point}", now)
        if self.milestones.settled and not self.tasks.trained:
            self.lifecycle.fail(
                f"{text}, after the training was over and before the scripts were: the model is "
                "lost; name a --checkpoint-dir to keep it",
                now,
            )

    # ---- the user ----

    def scale(self, request: pb.ScaleRequest, now: float) -> str:
        """Keep another number of workers from now on.

        Raises:
            UsageError: the number is not possible.
        """
        if self.lifecycle.ending:
            raise UsageError("the job is over: there is nothing to scale")
        before = self.fleet.workers_wanted
        self.workforce.scale(request)
        text = f"workers: {before} before, {request.max_workers} from now on"
        self._note("info", text, now)
        return text

    def stop(self, reason: str, now: float, *, at_once: bool = False) -> None:
        """The job is to end; may be repeated.

        Args:
            at_once: without a final checkpoint, and no process is waited for.
        """
        if at_once:
            self.fleet.hurry()
        if self.lifecycle.outcome is not None:
            return
        first = self.lifecycle.stopping is None
        if first:
            self.lifecycle.stop(reason, now)
        if at_once or (first and not self._has_more_than_is_kept()):
            self.lifecycle.stopped(now)
        elif first:
            self.fleet.retire(now, by=now + LEAVE_WITHIN_S)
            for member in self.members:
                member.draining = True
            self.checkpoints.stop()

    def _has_more_than_is_kept(self) -> bool:
        """Whether a checkpoint of now would hold more than the one that the job began with."""
        if self.workload.members_save:  # the members know whether there are checkpoints
            return bool(self.ring.ring.living())
        keeps = self.config.checkpoint.dir and self.config.trains and not self.checkpoints.complete
        return bool(keeps) and self.tasks.ready and self.done()[0] > self.tasks.records_before

    def _heed_stopping(self, stopping: Stopping, now: float) -> None:
        """Ends the job once the final checkpoint is there, or when none can be expected."""
        count, members_save = len(self.members), self.workload.members_save
        if members_save and not count:
            self.lifecycle.stopped(now)
            return
        awaits = members_save or self.tasks.awaits_snapshot
        problem = stopping.problem(now, workers=count, awaits_model=awaits)
        if problem:
            self.lifecycle.stopped(now, problem)

    # ---- time ----

    def tick(self, now: float) -> list[Action]:
        """What is to be done now."""
        lifecycle, newest = self.lifecycle, self.checkpoints.shown
        if lifecycle.outcome is None:
            self._lose_silent_workers(now)
        self.apply_all(self.workforce.tick(self.ring.ring, lifecycle, now, newest=newest), now)
        if lifecycle.outcome is None:
            self.form_ring(now)
            self._advance(now)
            self.conclude(now)
        if lifecycle.outcome is None and lifecycle.stopping is not None:
            self._heed_stopping(lifecycle.stopping, now)
        if lifecycle.outcome is not None:
            self.fleet.end(lifecycle.ended_at, leave_s=lifecycle.leave_s)
        actions: list[Action] = list(self.fleet.plan(now))
        for id in self.fleet.draining():
            if self.ring.may_drain(id):
                self.members.drain(id)
        ended = lifecycle.outcome is not None and not self.fleet.launched()
        lifecycle.over = ended and self.workforce.has_heard(lifecycle, now)
        return actions + self.checkpoints.take_actions()

    def _lose_silent_workers(self, now: float) -> None:
        cluster = self.config.cluster
        why = f"no heartbeat for {cluster.heartbeat_timeout_s:g} s"
        silent = [(member.id, why) for member in self.members.silent(now)]
        why = f"no step for {cluster.task_timeout_s:g} s"
        stuck = [(worker, why) for worker in self.tasks.expire(now)]
        for worker, reason in [*silent, *stuck]:
            self.workforce.declare_lost(worker, reason)
            self._worker_lost(WorkerLost(worker, reason, declared=True), now)

    def _advance(self, now: float) -> None:
        """Evaluates and saves when it is time."""
        records, steps = self.done()
        if records or self.tasks.ready:
            self.lifecycle.rates.sample(now, records, steps)
        if self.tasks.ready:
            events = self.milestones.advance(
                self.fleet.cluster(),
                self.fleet.strategy,
                steps=steps,
                trained=self._is_trained(now),
                stopping=self.lifecycle.stopping is not None,
                now=now,
            )
            self.apply_all(events, now)

    def _is_trained(self, now: float) -> bool:
        """Whether nothing is trained any more: all is done, or all workers that train have left."""
        stopping = self.lifecycle.stopping
        if stopping is None:
            # A script may leave its loop early.
            return self.tasks.trained or self.workforce.scripts_over(self.ring.ring, now)
        # A worker that has the model in its own process writes it while it leaves.
        left = self.fleet.strategy != "ps" or not len(self.members)
        return left or now >= stopping.leave_by

    def conclude(self, now: float) -> None:
        """Ends the job if the workforce, or the work, is over."""
        if self.lifecycle.ending:
            return
        event = self.workforce.conclusion(
            self.ring.ring,
            now,
            work_open=self.milestones.work_is_open,
            work_over=self.milestones.settled,
        )
        if event is not None:
            self.apply(event, now)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it."""
        return {name: part.to_state() for name, part in self._parts().items()}

    def _parts(self) -> dict[str, Part]:
        return {
            "lifecycle": self.lifecycle,
            "fleet": self.fleet,
            "members": self.members,
            "workforce": self.workforce,
            "ring": self.ring.ring,
            "checkpoints": self.checkpoints,
            "workload": self.workload,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """The inverse of :meth:`to_state`, before :meth:`start`; all processes are heard now."""
        self._compose(state["fleet"]["strategy"])
        for name, part in self._parts().items():
            part.from_state(state[name], now)
        if self.fleet.strategy == "ps":
            self._servers_ended(now)
        count = len(self.members)
        text = "worker continues" if count == 1 else "workers continue"
        self._note("info", f"the master was restarted: {count} {text}", now)

    def _servers_ended(self, now: float) -> None:
        kept = self.config.checkpoint.dir
        again = f"start the job with --resume to continue from the newest checkpoint in {kept}"
        lost = "the model is lost; --checkpoint-dir keeps it"
        self.lifecycle.fail(
            f"the master was killed, and the parameter servers with it: {again if kept else lost}",
            now,
        )
