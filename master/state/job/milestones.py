"""Effects of a job's progress: ends of epochs, evaluations, checkpoints, the end. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from master.state.job.checkpoint_manager import CheckpointManager
from master.state.lifecycle import Lifecycle
from master.state.work.evaluation import EvaluationResult
from master.state.work.progress import NanSteps, steps_of, whole_epochs
from master.state.work.script_data import option_for_more
from master.state.work.snapshot_task import SnapshotWritten
from master.state.work.task_scheduler import TaskScheduler
from master.state.work.tasks import TaskQueue
from master.state.workforce.fleet import Fleet
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.config.training import EarlyStop
from torch_edl.data.stream_space import saved_plan
from torch_edl.data.task_space import TaskSpace
from torch_edl.events import EpochDone, LimitReached, LoopLeft, NothingLeft, StoppedEarly
from torch_edl.tables.watermarks import Watermarks

# Upper bound on the ends of epochs that the log reports.
_EPOCHS_TOLD = 10


class Milestones:
    """Begins evaluations and checkpoints when they are due, once the tasks are made."""

    def __init__(
        self,
        config: JobConfig,
        lifecycle: Lifecycle,
        fleet: Fleet,
        tasks: TaskScheduler,
        checkpoints: CheckpointManager,
    ) -> None:
        self.left_out = NanSteps()
        self.settled = False
        """True once everything is trained, evaluated, saved and written."""
        self.epoch_ends: list[dict[str, float]] = []
        """Metrics of the evaluation at the end of each epoch; empty if the epoch had none."""
        self._config = config
        self._lifecycle = lifecycle
        self._fleet = fleet
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._epoch = 0

    @property
    def work_is_open(self) -> bool:
        """True if the tasks are made and not everything is settled."""
        return self._tasks.ready and not self.settled

    def has_more_than_is_kept(self, records: int) -> bool:
        """Return whether a final checkpoint of ``records`` would contain more than the job began
        with; False without a checkpoint directory."""
        config, more = self._config, records > self._tasks.records_before
        keeps = config.checkpoint.dir and config.trains and not self._checkpoints.complete
        return bool(keeps) and self._tasks.ready and more

    def begun(self, now: float) -> None:
        """Record that the tasks are made; warn if nothing is left to train."""
        main = self._tasks.main
        if main is None or not self._config.trains:
            return
        self._tasks.records_before = main.records_done
        if self.restored():
            self._lifecycle.note(NothingLeft(option=option_for_more(self._config)), now)

    def begin_training(self) -> None:
        """Reset for another training of a script. Its tasks are added later."""
        self.settled, self.epoch_ends, self._epoch = False, [], 0
        self.left_out = NanSteps()

    def restored(self) -> bool:
        """Reset to the progress of the queue. Returns whether nothing is left to train."""
        main = self._tasks.main
        if main is None:
            return False
        self._epoch = _epochs_over(main)
        whole = whole_epochs(main)
        self.epoch_ends = [*self.epoch_ends[:whole], *({} for _ in range(whole))][:whole]
        self.left_out.begin(main.space.total_records - main.records_done)
        at_end = not main.space.open  # a stream has no end
        return at_end and self._checkpoints.resume_at_end(main.space.total_steps)

    def advance(self, now: float, *, steps: int, trained: bool) -> None:
        """Begin what is due. A job that is to stop saves its progress, but evaluates nothing.

        Args:
            steps: minibatches done, including those of running tasks.
            trained: training is over.
        """
        main, evaluations = self._tasks.main, self._tasks.evaluations
        lifecycle, fleet, checkpoints = self._lifecycle, self._fleet, self._checkpoints
        stopping, cluster = lifecycle.stopping is not None, fleet.cluster()
        self._note_epochs(now)
        if trained and main is not None:
            if self.left_out.is_all:
                lifecycle.fail(self.left_out.failure, now)
                return
            lifecycle.trained(now)
        best = self._holds_best(steps)
        if stopping and trained and fleet.strategy == "ps" and not best and self._is_kept():
            self._stopped(now)
            return
        if cluster is None:
            return
        epochs = whole_epochs(main)
        waits = evaluations is not None and evaluations.is_pending(epochs)
        settled = checkpoints.settle(cluster, trained=trained or waits)
        rests, settled = settled or not (trained or waits), settled and trained
        if evaluations is not None and rests and not stopping:
            result = evaluations.tick(steps, trained=settled, epochs=epochs)
            if result is not None:
                self.evaluated(result, now)
                return
        evaluated = evaluations is None or evaluations.complete
        moves = fleet.strategy == "ps" and fleet.servers.moves
        cuts = moves and not trained and not stopping
        # The last model is written once it is known whether it is the best.
        last = settled and (evaluated or stopping or not checkpoints.best.wanted)
        due = cuts or best or checkpoints.is_due(steps, settled=last)
        if due and main is not None and self._config.trains and checkpoints.may_begin(now):
            folder = checkpoints.take(
                cluster,
                main.progress(),
                self._manifest(),
                main.space,
                steps=steps,
                settled=last,
                moves=cuts,
                best=best,
            )
            if cuts:  # servers may be sealed now: the move has to be completed
                fleet.servers.moving = True
            if folder is not None:
                self._tasks.snapshot.ask(str(folder))
        if last and not best and main is not None:
            checkpoints.write_output(main.space.total)
        if settled and checkpoints.complete:
            if stopping:
                self._stopped(now)
            elif evaluated and not best:
                lifecycle.trained(now)
                self._settle(now)

    def _is_kept(self) -> bool:
        """Return whether the newest checkpoint contains all progress, as after a move to servers
        that no worker has reached yet."""
        main, newest = self._tasks.main, self._checkpoints.newest
        if main is None or newest is None:
            return False
        both = Watermarks.union([newest.progress, main.progress()])
        return steps_of(main.space, both) <= newest.manifest.steps

    def evaluated(self, result: EvaluationResult, now: float) -> None:
        """Record the end of an evaluation. With one per epoch, apply the early-stopping rule."""
        self._lifecycle.note(result.event, now)
        main, train, evaluations = self._tasks.main, self._config.train, self._tasks.evaluations
        if main is None or evaluations is None or not evaluations.per_epoch:
            return
        self._holds_best(result.steps)
        epoch, space = evaluations.epochs_over, main.space
        if len(self.epoch_ends) < epoch:
            self.epoch_ends.append(dict(result.metrics))
        if not train.early_stop or main.complete or not isinstance(space, TaskSpace):
            return
        rule = EarlyStop.of(train.early_stop)
        metric = rule.objective.metric
        values = [each.metrics[metric] for each in evaluations.results]
        if rule.is_due(values):
            space.extend(epoch)
            best = rule.objective.best(values)
            stopped = StoppedEarly(
                epoch=epoch,
                metric=metric,
                patience=rule.patience,
                best=values[best],
                best_epoch=epoch - len(values) + best + 1,
            )
            self._lifecycle.note(stopped, now)

    def _holds_best(self, steps: int) -> bool:
        """Return whether the model of ``steps`` is the best so far and not in a checkpoint yet, for
        which the next epoch waits."""
        evaluations = self._tasks.evaluations
        if evaluations is None or not evaluations.per_epoch or not evaluations.results:
            return False
        newest = evaluations.results[-1]
        best = self._checkpoints.best.is_improved_by(newest.metrics)
        evaluations.holds = best and newest.steps == steps
        return evaluations.holds

    def _note_epochs(self, now: float) -> None:
        """Log the epochs that ended since the last call, and the limit that cut the last."""
        main, evaluations = self._tasks.main, self._tasks.evaluations
        if main is None or not self._config.trains:
            return
        told, self._epoch = self._epoch, _epochs_over(main)
        epochs, whole = main.space.epochs, whole_epochs(main)
        if evaluations is None or not evaluations.per_epoch:
            self.epoch_ends += ({} for _ in range(whole - len(self.epoch_ends)))
        every = -(-epochs // _EPOCHS_TOLD)
        for number in range(told + 1, whole + 1):
            if number % every == 0 or number == epochs:
                self._lifecycle.note(EpochDone(epoch=number, epochs=epochs), now)
        if whole < self._epoch != told:
            self._lifecycle.note(self._limit(main), now)

    def _limit(self, main: TaskQueue) -> LimitReached:
        """Return which limit ended the training before its last epoch was done."""
        most = self._config.train.max_steps
        if not most or main.steps_done < most:
            return LimitReached(option="--max-records", limit=self._config.data.max_records)
        return LimitReached(
            option="--max-steps", limit=most, epoch=whole_epochs(main), epochs=main.space.epochs
        )

    def _settle(self, now: float) -> None:
        if self.settled:
            return
        self.settled = True
        if self.left_out.event is not None:
            self._lifecycle.note(self.left_out.event, now)
        main = self._tasks.main
        if main is not None and not main.complete:
            self._lifecycle.note(_ended_early(main), now)

    def snapshot_written(self, event: SnapshotWritten) -> None:
        """Request the commit of a model that a worker wrote."""
        assert self._tasks.main is not None
        snapshot = event.snapshot
        manifest = self._manifest()
        steps = steps_of(self._tasks.main.space, snapshot.watermarks)
        plan = saved_plan(self._tasks.main.space, snapshot.watermarks.retired_before)
        manifest = replace(
            manifest,
            data=manifest.data | plan,
            steps=steps,
            metrics=manifest.metrics if manifest.steps == steps else {},
            watermarks=snapshot.watermarks,
            files=snapshot.files,
            versions=(snapshot.version,),
        )
        self._checkpoints.snapshot_written(Path(event.directory), manifest)

    def _stopped(self, now: float) -> None:
        """End a stopping job with the progress of the newest checkpoint, which contains all."""
        newest = self._checkpoints.newest
        if newest is not None and self._tasks.main is not None:
            self._tasks.restore_main(newest)
        self._lifecycle.stopped(now)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "settled": self.settled,
            "epoch": self._epoch,
            "epoch_ends": list(self.epoch_ends),
            "left_out": self.left_out.to_state(),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.settled, self._epoch = state["settled"], state["epoch"]
        self.epoch_ends = state["epoch_ends"]
        self.left_out.from_state(state["left_out"])

    def _manifest(self) -> Manifest:
        """Return a manifest without the fields that are known only after the write. Its metrics
        are those of the best model, if the checkpoint will hold its number of steps."""
        manifest = Manifest(
            job=self._config.name,
            strategy=self._fleet.strategy,
            steps=0,
            data=dict(self._tasks.identity),
        )
        evaluations = self._tasks.evaluations
        if evaluations is None or not evaluations.holds:
            return manifest
        newest = evaluations.results[-1]
        metrics = {name: value for name, value in newest.metrics.items() if math.isfinite(value)}
        return replace(manifest, steps=newest.steps, metrics=metrics)


def _epochs_over(main: TaskQueue) -> int:
    """Return the number of epochs that are over: all of them if a limit ended the training."""
    return main.space.epochs if main.complete else whole_epochs(main)


def _ended_early(main: TaskQueue) -> LoopLeft:
    """Return the event of a script that ended before its last task."""
    whole, left = whole_epochs(main), main.space.total - main.done
    if whole and main.done == main.space.total * whole // main.space.epochs:
        return LoopLeft(epoch=whole, epochs=main.space.epochs)
    return LoopLeft(tasks=left)
