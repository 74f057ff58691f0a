"""The state machine of a job: each method is an event at time ``now``. Pure.

:meth:`ManagedJob.tick` returns actions, and :meth:`ManagedJob.apply` receives their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from master.state.actions import (
    Action,
    ActionEvent,
    CheckpointFailed,
    DataScanned,
    Failure,
    PlanKept,
    PreprocessingKept,
    Remove,
    Saved,
    StreamGrown,
)
from master.state.job.checkpoint_manager import CheckpointManager, CutTaken
from master.state.job.checkpoint_policy import BestCheckpoint
from master.state.job.lost_workers import LostWorkers
from master.state.job.milestones import Milestones
from master.state.job.preparation import Decided, Preparation, PreparationEvent
from master.state.lifecycle import LEAVE_WITHIN_S, Lifecycle
from master.state.membership import Membership
from master.state.ring import Ring
from master.state.scripts.meetings import Meetings
from master.state.scripts.script_workforce import ScriptWorkforce
from master.state.scripts.trainings import Counts, Trainings
from master.state.work.evaluation import EvaluationResult
from master.state.work.script_data import ScriptProgress
from master.state.work.snapshot_task import SnapshotFailed, SnapshotWritten
from master.state.work.suspect_spans import SuspectSpans
from master.state.work.task_scheduler import TaskEvent, TaskScheduler
from master.state.workforce.deaths import Gone
from master.state.workforce.failover import Failover, FailoverEvent, ModelLost
from master.state.workforce.fleet import Fleet
from master.state.workforce.workforce import (
    Finished,
    StopRequested,
    WorkerGone,
    WorkerReturned,
    Workforce,
    WorkforceEvent,
)
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.events import (
    Event,
    Loss,
    ModelMoved,
    ModelRestored,
    ProcessLeft,
    RingFormed,
    RoundFormed,
    ScriptRestarted,
    TasksMade,
    TrainingBegan,
)
from torch_edl.interfaces.watch import Verdict
from torch_edl.processes.launcher import (
    ProcessExit,
    ProcessFails,
    ProcessNotStarted,
    ProcessRefused,
    ProcessRuns,
    ProcessWaits,
)
from torch_edl.wire import master_pb2 as pb

_Happened = PreparationEvent | TaskEvent | CutTaken | WorkforceEvent | FailoverEvent
JobEvent = ActionEvent | StreamGrown | _Happened


class ManagedJob:
    """One job.

    Args:
        folder: temporary folder of the job.
        resumed: the checkpoint to resume from.
        resumed_later: checkpoints from which later trainings of a script are resumed, by number.
        evaluated: earlier checkpoints of which one may be the best.
        preprocessing: already fitted, by an earlier master or with the loaded model.
        wall_offset_s: Unix time minus the clock of the events.
    """

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        *,
        folder: Path,
        resumed: Saved | None = None,
        resumed_later: Mapping[int, Saved] | None = None,
        evaluated: Iterable[Saved] = (),
        preprocessing: bytes = b"",
        wall_offset_s: float = 0.0,
    ) -> None:
        script, cluster = config.kind == "script", config.cluster
        self.fleet = fleet
        self.lifecycle = Lifecycle(wall_offset_s=wall_offset_s)
        self.members = Membership(heartbeat_timeout_s=cluster.heartbeat_timeout_s)
        self.meetings = Meetings(self.members)
        best = BestCheckpoint(config.train.keep_best, evaluated)
        self.checkpoints = CheckpointManager(config, folder=folder, resumed=resumed, best=best)
        self.failover = Failover(config, fleet)
        self.tasks = TaskScheduler(config, preprocessing)
        """Tasks that workers lease; empty for a script in a ring."""
        self.workload = ScriptProgress(self.tasks.ledger) if script else self.tasks
        self.ring = Ring()
        self.spans = SuspectSpans()
        self.trainings = Trainings(resumed_later)
        self.workforce = Workforce(fleet, self.ring, min_workers=cluster.min_workers)
        if script:
            self.workforce = ScriptWorkforce(
                config, fleet, self.ring, members=self.members, lifecycle=self.lifecycle
            )
        self.preparation = Preparation(config, self.tasks, resumed=resumed)
        self.milestones = Milestones(config, self.lifecycle, fleet, self.tasks, self.checkpoints)
        self.lost_workers = LostWorkers(
            config, self.lifecycle, self.members, self.tasks, self.ring, self.spans, self.workforce
        )
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        """The newest verdicts of all watches by role and id of the process."""
        self._with_journals = 1  # oldest incarnation of the model with journals
        self.damaged = 0
        self.restarts = 0  # restarts of the master
        self.reason = "a training script" if script else ""
        """Reason for the choice of the strategy."""
        self.changed = False
        """True if calls that wait for a ring or a round can be answered."""

    @property
    def config(self) -> JobConfig:
        """Configuration; for a script on servers, it includes the data of its loader."""
        return self.preparation.config

    def script_workforce(self) -> ScriptWorkforce:
        """Return the workforce of a script; UsageError for a model file."""
        if not isinstance(self.workforce, ScriptWorkforce):
            raise UsageError(f"job {self.config.name} trains a model file, not a script")
        return self.workforce

    @property
    def state(self) -> str:
        """Phase: starting, running, stopping, finishing, finished, failed or stopped."""
        closed = self.workforce.closed and not self.lifecycle.ending
        return "finishing" if closed else self.lifecycle.state

    def done(self) -> tuple[int, int]:
        """Return (records, minibatches) that are in the model; for a script, plus those that are in
        the models of its earlier trainings."""
        records, steps = self.workload.done(self.members)
        before = self.trainings.before
        return before.records + records, before.steps + steps

    @property
    def is_untried(self) -> bool:
        """True before the first update of this job: the user's code has not proven to work."""
        return self.workload.done(self.members)[0] <= self.workload.records_before

    def start(self, now: float) -> None:
        """Begin the job once the master listens."""
        if not self.fleet.strategy:  # a new job, not a restarted master
            self.prepare(self.preparation.start(), now)

    def prepare(self, events: Iterable[PreparationEvent], now: float) -> None:
        """Apply the events of the preparation; a UsageError fails the job."""
        if self.lifecycle.outcome is not None:
            return
        try:
            self.apply_all(events, now)
        except UsageError as error:
            self.lifecycle.fail(str(error), now, usage=True)

    def _decide(self, event: Decided, now: float) -> None:
        self.reason = event.reason
        if not self.fleet.strategy:
            kept = self.checkpoints
            self.compose(event.strategy)
            self.fleet.decide(
                event.strategy, restore=kept.restore_from, values_only=kept.values_only
            )

    def compose(self, strategy: str) -> None:
        """Select the workload that the strategy implies."""
        self.tasks.lockstep = strategy == "allreduce"
        if strategy == "ps":
            self.workload = self.tasks

    def apply(self, event: JobEvent, now: float) -> None:
        """Apply an event of a part, or the result of an action."""
        match event:
            case Failure():
                self.lifecycle.fail(event.error, now, traceback=event.traceback, usage=event.usage)
            case ProcessNotStarted():
                self.fleet.not_started(event, now)
                self.apply_all(self.failover.not_started(event, now), now)
            case DataScanned():
                self.damaged += event.damaged
                self.prepare(self.preparation.scanned(event), now)
            case StreamGrown():
                if not self.lifecycle.ending:
                    saving = self.checkpoints.running
                    self.apply_all(self.preparation.stream_grown(event, saving=saving), now)
            case PlanKept():
                self.preparation.plan_kept(event)
            case Decided():
                self._decide(event, now)
            case TasksMade():
                self.milestones.begun(now)
                self.lifecycle.note(event, now)
            case SnapshotWritten():
                self.milestones.snapshot_written(event)
            case PreprocessingKept():
                self.apply_all(self.tasks.fitting.kept(event), now)
            case EvaluationResult():
                self.milestones.evaluated(event, now)
            case SnapshotFailed():
                self.apply(CheckpointFailed(event.error, self.fleet.model.incarnation), now)
            case WorkerGone():
                self.lost_workers.lose(event, now)
            case WorkerReturned():
                self.members.readmit(event.worker)
                self.ring.readmit(event.worker)
            case ModelLost():
                self._renew(event.why, now, loss=event.loss)
            case ProcessWaits() | ProcessRuns() | ProcessFails() | ProcessRefused():
                self.apply_all(self.workforce.progress(event, now), now)
            case Event():
                self.changed = self.changed or isinstance(event, RoundFormed)
                self.lifecycle.note(event, now)
            case Finished():
                self.lifecycle.finish(now, leave_s=event.leave_s)
            case StopRequested():
                self.stop(event.reason, now)
            case CutTaken():
                self._move(event, now)
            case _:
                self.apply_all(self.checkpoints.apply(event, now), now)

    def apply_all(self, events: Iterable[JobEvent], now: float) -> None:
        for event in events:
            self.apply(event, now)

    def exited(self, exit: ProcessExit, now: float, *, log: str) -> None:
        """Handle the exit of a process that the master started."""
        process = self.fleet.process(exit.role, exit.id)
        if process is not None and process.log and not self.fleet.starts.in_pods:
            log = process.log  # the output of a script is not in the log of its node
        self.apply_all(self.workforce.ended(exit, now), now)
        result = self.fleet.exited(exit, now, log=log)
        if isinstance(result, Failure) and exit.error:
            self.apply(result, now)  # the error of the script says more than a verdict on records
        if exit.role == "worker" and self._died_by_itself(exit, result):
            self.lost_workers.blame(exit, now, log=log)
        cost = self.lost_workers.drop(exit.id, now) if exit.role == "worker" else None
        if self.lifecycle.outcome is not None or result is None:
            return
        match result:
            case Failure() | Event():
                self.apply(result, now)
                return
            case Gone() if exit.role == "ps":
                self.apply_all(self.failover.gone(result, exit.id, now), now)
            case _ if self.lifecycle.stopping is not None:
                return
            case _ if self._worker_had_model:
                loss = Loss(process=result.process, way=result.way, cause=result.cause)
                self._renew(loss.what, now, loss=None if result.declared else loss)
            case _ if result.expected:
                left = ProcessLeft(
                    process=result.process,
                    way=result.way,
                    cause=result.cause,
                    preempted=cost is not None,
                    **(cost._asdict() if cost is not None else {}),
                )
                self.lifecycle.note(left, now)
            case _ if not result.declared:  # otherwise there is an event of the loss already
                lost = self.lost_workers.event(result.process, result.way, result.cause)
                self.lifecycle.note(lost, now)
        self.apply_all(self.workforce.left(exit), now)

    def _died_by_itself(self, exit: ProcessExit, result: Gone | Failure | Event | None) -> bool:
        """Return whether a worker ended although it was not asked to leave, preempted, or ended by
        the master."""
        process = self.fleet.process(exit.role, exit.id)
        if exit.was_taken or process is None or process.lost or self.lifecycle.outcome is not None:
            return False
        return isinstance(result, Failure) or (isinstance(result, Gone) and not result.expected)

    @property
    def _worker_had_model(self) -> bool:
        local = self.fleet.strategy == "local" and self.config.kind == "train"
        return local and self.tasks.fitting.ready

    def form_ring(self, now: float) -> bool:
        """Form the next ring if it is due. Returns whether one was formed."""
        ring, most = self.ring, self.fleet.workers_wanted
        # A process that is lost in a later training may be unable to take part in it again.
        least = min(self.config.cluster.min_workers, most) if self.trainings.number == 1 else 1
        if not ring.due(now, min_workers=least, max_workers=most):
            return False
        if ring.model_lost:
            self._renew("no worker that is left has the model", now)
        model = self.fleet.model
        formed = ring.form(restored_from=model.restored_from, values_only=model.values_only)
        self.spans.ring_formed()
        formed.report_spans = self.spans.watched
        formed.skip.extend(
            pb.TaskStep(first=each.first, last=each.last) for each in self.spans.skipped
        )
        self.tasks.ledger.add("ring", formed.number, list(formed.workers))
        workers = len(formed.workers)
        self.lifecycle.note(RingFormed(ring=formed.number, workers=workers), now)
        self.lifecycle.began(now)
        self.changed = True
        return True

    def begin_training(self, number: int, now: float) -> None:
        """Begin the next training of a script; or an earlier one again, if no process of the
        current one is left."""
        before, (done, _) = self.trainings.number, self.done()
        again = number <= before
        newest, counts = self.checkpoints.newest, self._counts_on_servers()
        kept = self.trainings.begin(number, self.checkpoints.named, newest, counts)
        self.ring.begin_training()
        self.spans.begin_training()
        self.checkpoints.begin_training(number, *kept)
        restore, values_only = self.checkpoints.restore_from, self.checkpoints.values_only
        self.fleet.renew(restore=restore, values_only=values_only)
        if isinstance(self.workload, ScriptProgress):
            self.workload.begin_training(again=again)
        else:
            self.tasks.begin_training(number)
            self.preparation.begin_training(self.checkpoints.newest)
            self.milestones.begin_training()
            self.meetings.begin_training(number, before)
            self.lifecycle.continued()
        if again:
            self.lifecycle.rolled_back(done)
            self.lifecycle.note(ScriptRestarted(training=before), now)
        else:
            self.lifecycle.note(TrainingBegan(number=number), now)

    def _counts_on_servers(self) -> Counts:
        """Return the totals of the current training; zeros in a ring."""
        main = self.tasks.main
        if self.fleet.strategy != "ps" or main is None:
            return Counts()
        records, steps = self.tasks.done(self.members)
        left_out = self.milestones.left_out.nan_steps
        return Counts(records, steps, main.space.total_records - records, left_out)

    def complete_training(self) -> bool:
        """Complete the current training, whose model is on servers, after the scripts of all
        processes have closed the training. Returns False while the last checkpoint or the output is
        being written."""
        self.trainings.awaited = True
        if not self.tasks.ready:
            return True
        # A cluster may have no folder that servers and workers share.
        if self.config.checkpoint.output or self.config.is_on_one_machine:
            self.checkpoints.keep_final()
        return self.milestones.settled and self.checkpoints.complete

    def _renew(self, text: str, now: float, *, loss: Loss | None = None) -> None:
        """Begin a new incarnation of a lost model from the newest checkpoint.

        Args:
            text: what was lost, as a part of a sentence.
            loss: loss of a process that is the cause, unless an event has told it.
        """
        if self.lifecycle.stopping is not None:
            self.lifecycle.stopped(now, text)
            return
        done, _ = self.done()
        kept = self.checkpoints
        restore_from = kept.restore_from
        self.tasks.void()
        self.meetings.void()
        self.fleet.renew(restore=kept.restore_from, values_only=kept.values_only)
        self.members.forget_open_work()
        if self.config.trains:
            self.lifecycle.rolled_back(done)
            self.workload.restore(kept.restore(self.fleet.model.incarnation))
            self.milestones.restored()
        again = max(0, done - self.done()[0]) if self.tasks.ready else 0
        names = ("process", "way", "cause", "silent_s") if loss is not None else ()
        restored = ModelRestored(
            why=text,
            **{name: getattr(loss, name) for name in names},
            who={"local": "the worker", "ps": "the servers"}.get(
                self.fleet.strategy, "the workers"
            ),
            checkpoint=restore_from,
            records_again=again,
        )
        self.lifecycle.note(restored, now)
        if self.milestones.settled and not self.tasks.trained:
            when = "after the training was over and before the scripts were"
            fix = "the model is lost; name a --checkpoint-dir to keep it"
            self.lifecycle.fail(f"{text}, {when}: {fix}", now)

    def _move(self, cut: CutTaken, now: float) -> None:
        """Start new servers that restore the cut, which contains every acknowledged push. A cut is
        void, and another follows, if a server was replaced. A job that is ending keeps its own."""
        servers = self.fleet.servers
        void = tuple(server.incarnation for server in servers.now()) != cut.servers
        if void or self.lifecycle.ending:
            return
        before = servers.shards
        self.tasks.void()
        self.fleet.renew(restore=str(cut.saved.path))
        self.members.forget_open_work()
        self.checkpoints.moved(cut.saved, self.fleet.model.incarnation)
        self.lifecycle.note(ModelMoved(servers_before=before, servers=servers.shards), now)

    def stop(self, reason: str, now: float, *, at_once: bool = False) -> None:
        """Stop the job; ``at_once`` without a final checkpoint and without a wait for processes."""
        if at_once:
            self.fleet.hurry()
        if self.lifecycle.outcome is not None:
            return
        if first := self.lifecycle.stopping is None:
            self.lifecycle.stop(reason, now)
        if self.workload.members_save:  # the members know whether there are checkpoints
            saves = bool(self.ring.living())
        else:
            saves = self.milestones.has_more_than_is_kept(self.workload.done(self.members)[0])
        if at_once or (first and not saves):
            self.lifecycle.stopped(now)
        elif first:
            self.fleet.retire(now, by=now + LEAVE_WITHIN_S)
            for member in self.members:
                member.draining = True
            self.checkpoints.output.stopped = True

    def tick(self, now: float) -> list[Action]:
        """Advance the job to ``now``. Returns the actions to execute."""
        lifecycle, newest = self.lifecycle, self.checkpoints.shown
        if lifecycle.outcome is None:
            self.lost_workers.tick(now)
            self.apply_all(self.failover.tick(now, lifecycle.counts_silence), now)
        self.apply_all(self.workforce.tick(now, newest=newest), now)
        if lifecycle.outcome is None:
            self.form_ring(now)
            self._advance(now)
            self.conclude(now)
        lifecycle.heed_stopping(
            now,
            workers=len(self.members),
            members_save=self.workload.members_save,
            awaits_snapshot=self.tasks.snapshot.is_left,
        )
        if lifecycle.outcome is not None:
            self.fleet.end(lifecycle.ended_at, leave_s=lifecycle.leave_s)
        actions: list[Action] = list(self.fleet.plan(now))
        for id in self.fleet.draining():
            member = self.members.get(id)
            if member is not None and self.ring.may_drain(id, self.members.staying()):
                member.draining = True
        ended = lifecycle.outcome is not None and not self.fleet.launched()
        lifecycle.over = ended and self.workforce.has_heard(now)
        for changed in self.fleet.take_events():
            lifecycle.note(changed, now)
        actions += [*self.preparation.take_actions(), *self.tasks.fitting.take_actions()]
        return [*actions, *self._old_journals(), *self.checkpoints.take_actions()]

    def _old_journals(self) -> list[Remove]:
        """Remove the journals of earlier incarnations once their servers have ended."""
        fleet = self.fleet
        if fleet.cluster() is None or any(each not in fleet.servers for each in fleet.alive("ps")):
            return []
        first, self._with_journals = self._with_journals, fleet.model.incarnation
        folders = map(fleet.server_command.journals_of, range(first, self._with_journals))
        return [Remove(folder) for folder in folders if folder is not None]

    def _advance(self, now: float) -> None:
        """Begin evaluations and checkpoints that are due."""
        records, steps = self.done()
        if records or not self.workload.members_save:  # members of a ring report after a while
            self.lifecycle.resumed_from(records)
        if records or self.tasks.ready:
            self.lifecycle.rates.sample(now, records, steps)
        stopping = self.lifecycle.stopping
        if stopping is None:
            # A script may leave its loop.
            left = self.trainings.awaited or self.workforce.scripts_over(now)
            trained = self.tasks.trained or left
        else:
            # A worker that has the model in its own process writes it while it leaves.
            left = not len(self.members) or now >= stopping.leave_by
            trained = left or self.fleet.strategy != "ps"
        if self.tasks.ready:
            steps -= self.trainings.before.steps  # checkpoints count those of their training
            self.milestones.advance(now, steps=steps, trained=trained)

    def conclude(self, now: float) -> None:
        """End the job if the workforce or the work is over."""
        if self.lifecycle.ending:
            return
        open, over = self.milestones.work_is_open, self.milestones.settled
        event = self.workforce.conclusion(now, work_open=open, work_over=over)
        if event is not None:
            self.apply(event, now)
