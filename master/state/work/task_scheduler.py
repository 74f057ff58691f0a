"""All leasable work of a job: training or prediction, evaluations, fitting, snapshots. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from master.state.actions import Failure, Saved
from master.state.membership import Membership
from master.state.work.evaluation import EvaluationResult, Evaluations
from master.state.work.fitting import Fitting
from master.state.work.leases import IdleWorker, Lease, TaskFailures
from master.state.work.ledger import TaskLedger
from master.state.work.progress import first_task, whole_epochs
from master.state.work.snapshot_task import SnapshotFailed, SnapshotTask, SnapshotWritten
from master.state.work.suspects import verdict
from master.state.work.tasks import TaskQueue, Unreported
from torch_edl.config import JobConfig
from torch_edl.data.stream_space import PLAN, AnySpace, StreamSpace, saved_plan
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.events import Event, RecordsSkipped
from torch_edl.processes.launcher import ProcessExit
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


class TaskScheduler:
    """The queues of a job, made once the data is counted and the model file is loaded.

    It is the workload of a job that leases its tasks, as
    :class:`~master.state.work.script_data.ScriptProgress` is that of a script. Methods that both
    have are described there.

    Args:
        preprocessing: the fitted part, see :class:`~master.state.work.fitting.Fitting`.
    """

    members_save = False

    def __init__(self, config: JobConfig, preprocessing: bytes = b"") -> None:
        self.records_before = 0
        """Records that the job began with."""
        self.main: TaskQueue | None = None
        """Tasks of training or prediction; None before they are made, and in an evaluation job."""
        self.evaluations: Evaluations | None = None
        self.shards: Sequence[Shard] = ()
        """Shards of :attr:`main`."""
        self.identity: Mapping[str, Any] = {}
        """Values that determine which records a task id means."""
        self.ledger = TaskLedger()
        self.lockstep = False
        """True if a ring processes :attr:`main` together, in order; nothing of it is leased."""
        self._config = config
        self._restored: tuple[Mapping[str, Any], float] | None = None
        self._leases = self._first_lease = 0
        self._new_queue = functools.partial(
            TaskQueue, lease_ids=self._numbers(), timeout_s=config.cluster.task_timeout_s
        )
        self.fitting = Fitting(preprocessing, self._new_queue)
        """The preprocessing, fitted before anything except snapshots is leased."""
        self._unreported: Unreported | None = None
        self.snapshot = SnapshotTask(self._new_queue)
        self._failures = TaskFailures(config.cluster.max_task_failures)
        self.idle = IdleWorker()

    # ---- what it says ----

    @property
    def ready(self) -> bool:
        """True once the data is known: tasks can be leased."""
        return self.main is not None or self.evaluations is not None

    @property
    def trained(self) -> bool:
        """True once every training (or prediction) task is done."""
        return self.ready and (self.main is None or self.main.complete)

    @property
    def available(self) -> bool:
        """True if a task is not leased."""
        return any(each.todo for each in self.queues())

    @property
    def retired_before(self) -> int:
        """Id below which all training tasks are done."""
        return self.main.retired_before if self.main is not None else 0

    @property
    def epochs_open(self) -> int:
        """Number of epochs that may be trained before the next evaluation; 0 for all."""
        evaluations = self.evaluations
        return evaluations.epochs_open if evaluations and evaluations.per_epoch else 0

    def done(self, members: Membership) -> tuple[int, int]:
        """Return (records, minibatches) of done tasks, and of running ones as reported."""
        if self.main is None or self._unreported is None:
            return (self.evaluations.records_done if self.evaluations is not None else 0), 0
        records, steps = self._unreported.done(members)
        return self.main.records_done + records, self.main.steps_done + steps

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        evaluations, queue = self.evaluations, self.main
        status.epochs = self._config.data.epochs if self._config.trains else 1
        if queue is not None:
            status.epochs = queue.space.epochs
        elif evaluations is not None:
            queue = evaluations.queue
        if queue is not None:
            status.records.total = queue.space.total_records
            status.epoch = queue.epoch
            leased = self.fitting.queue or queue
            status.tasks.todo, status.tasks.doing = leased.todo, leased.doing
            status.tasks.done = leased.done
            if finished and self._config.kind == "script":
                status.records_early = queue.space.total_records - queue.records_done
        elif evaluations is not None:  # an evaluation job before its one evaluation, or after it
            status.records.total = evaluations.space.total_records
            over = evaluations.complete
            status.epoch = int(over)
            status.tasks.done = evaluations.space.total if over else 0
            status.tasks.todo = 0 if over else evaluations.space.total

    def queues(self) -> list[TaskQueue]:
        """Return all queues that can be leased from, the most urgent first."""
        queues = [self.snapshot.queue] if self.snapshot.queue is not None else []
        if self.fitting.queue is not None:
            return [*queues, self.fitting.queue]
        if self.evaluations is not None:
            queues += self.evaluations.queues()
        if self.main is not None and not self.lockstep:
            queues.append(self.main)
        return queues

    # ---- the data ----

    def begin(
        self,
        main: AnySpace | None,
        evaluation: TaskSpace | None,
        *,
        shards: Sequence[Shard],
        identity: Mapping[str, Any],
        resumed: Saved | None,
        preprocessing: str = "",
    ) -> None:
        """Make the queues.

        Args:
            main: the tasks of training or prediction.
            evaluation: the tasks of the evaluation data.
            shards: shards of ``main``.
            identity: see :func:`torch_edl.data.resuming.identity`.
            resumed: the checkpoint to resume from.
            preprocessing: declaration of the preprocessing; empty if the model file has none.

        Raises:
            UsageError: the preprocessing does not fit the model that is loaded.
        """
        config = self._config
        fits = preprocessing and config.trains and not config.data.streams
        pass_over = TaskSpace(shards, config.records_per_task) if fits else None
        self.fitting.begin(preprocessing, pass_over)
        self.shards, self.identity = shards, identity
        if evaluation is not None:
            train = config.train
            self.evaluations = Evaluations(
                evaluation,
                every=train.eval_every if config.trains else 0,
                new_queue=self._new_queue,
                per_epoch=train.evaluates_epochs and config.trains,
            )
        if main is not None:
            kind = pb.TASK_TRAIN if config.trains else pb.TASK_PREDICT
            self.main = self._new_queue(main, kind=kind, ledger=self.ledger)
            self.ledger.begin(main)
            self._unreported = Unreported(self.main)
        if self._restored is not None:
            self._rebuild(*self._restored)
        elif resumed is not None and config.trains:
            self.restore(resumed)

    def begin_training(self, number: int) -> None:
        """Drop the tasks of the current training of a script; the tasks of training ``number`` are
        added later. The numbers of leases continue, so a late report of the earlier training names
        an unknown lease."""
        total = self.main.space.total if self.main is not None else 0
        self.ledger.begin_training(number, total)
        self.main = self.evaluations = self._unreported = self._restored = None
        self.shards, self.identity, self.records_before = (), {}, 0
        self.snapshot.drop()

    # ---- leases ----

    def trial(self) -> pb.LeaseMessage | None:
        """Return the first minibatch of the evaluation data to try before training, else None."""
        main, evaluations = self.main, self.evaluations
        if main is None or evaluations is None or main.records_done > self.records_before:
            return None
        return evaluations.trial(self._config.data.batch_size)

    def lease_snapshot(self, worker: int, now: float) -> list[pb.LeaseMessage]:
        """Lease the snapshot task, if it is due, to a worker that leaves."""
        if self.snapshot.queue is None:
            return []
        lease = self._grant_next(self.snapshot.queue, worker, now)
        return [] if lease is None else [lease]

    def grant(
        self,
        request: pb.LeaseRequest,
        now: float,
        *,
        workers: int = 1,
        draining: bool = False,
        snapshots: bool = True,
    ) -> list[pb.LeaseMessage]:
        """Lease the most urgent tasks to a worker: as many as it wants, at least one if more urgent
        than training, and training tasks ahead up to a fair share among the ``workers``.

        Args:
            draining: the worker is leaving and gets no task.
            snapshots: the worker has a model that can be written.
        """
        worker, want = request.worker_id, request.want
        queues = [each for each in self.queues() if (each is self.fitting.queue) == request.fit]
        held = set(request.held)
        for each in queues:
            each.keep_only(worker, held, now)
        leases: list[pb.LeaseMessage] = []
        for each in queues if not draining else ():
            limit = max(1, want)
            if each is self.main:
                share = each.todo // (2 * workers) - len(each.held_by(worker))
                limit = max(want, min(want + request.ahead, len(leases) + share))
            while len(leases) < limit and (snapshots or each is not self.snapshot.queue):
                lease = self._grant_next(each, worker, now, request.epochs)
                if lease is None:
                    break
                leases.append(lease)
        return leases

    def _grant_next(
        self, queue: TaskQueue, worker: int, now: float, epochs: int = 0
    ) -> pb.LeaseMessage | None:
        epochs = epochs or self.epochs_open
        before = first_task(queue, epochs) if queue is self.main and epochs else None
        alone, queues = True, self.queues()
        if any(each.suspects for each in queues):
            alone = not any(each.held_by(worker) for each in queues)
            if any(each.holds_suspect(worker) for each in queues):
                return None
        lease = queue.take_next(worker, now, before=before, alone=alone)
        if lease is None:
            return None
        if queue is self.snapshot.queue and self.main is not None and not self.lockstep:
            self.snapshot.begun(self.main.progress())
        return queue.message(lease)

    def heard(self, heartbeat: pb.HeartbeatRequest, *, counts: bool) -> bool:
        if self.main is None or not self.lockstep or not counts or heartbeat.pass_index != 0:
            return False
        self.main.advance(heartbeat.position)
        self.ledger.heard(heartbeat)
        return True

    def touch(self, worker: int, now: float) -> None:
        """Extend the leases of a worker that made progress."""
        for each in self.queues():
            each.touch(worker, now)

    def drop_worker(self, worker: int, why: str = "worker left") -> None:
        """Return all tasks of a worker to their queues."""
        for each in self.queues():
            each.drop_worker(worker, why)

    def held(self, worker: int, now: float) -> tuple[int, float, float]:
        """Return the sum and the maxima of :meth:`TaskQueue.held` over all queues."""
        held = [(0, 0.0, 0.0), *(each.held(worker, now) for each in self.queues())]
        return sum(x[0] for x in held), max(x[1] for x in held), max(x[2] for x in held)

    def late(self, now: float) -> set[int]:
        """Return the workers whose leases expire by ``now`` unless they make progress."""
        return {worker for each in self.queues() for worker in each.late(now)}

    def expire(self, now: float) -> list[tuple[Lease, int]]:
        """Return expired leases to their queues: see :meth:`TaskQueue.expire`."""
        return [expired for each in self.queues() for expired in each.expire(now)]

    def recognize(
        self, worker: int, lease_id: int, task: pb.LeasedTask, incarnation: int, now: float
    ) -> None:
        """Adopt a lease that an earlier master granted after it last stored its state; one of an
        earlier model incarnation is void. Leases of evaluations are not adopted: an unknown
        evaluation begins again."""
        main = self.main
        known = not lease_id or lease_id > self._first_lease
        if known or main is None or self.lockstep or main.has(lease_id):
            return
        if (task.kind, task.incarnation) == (main.kind, incarnation):
            main.adopt(lease_id, task.task_id, worker, now)

    # ---- reports ----

    def begun(self, request: pb.BeginTaskRequest, now: float) -> None:
        """Record the first records that a worker read of a task, or its step in a suspect."""
        for each in self.queues():
            each.begun(request, now)

    def complete(
        self, request: pb.CompleteTaskRequest, now: float
    ) -> tuple[TaskQueue, TaskEvent | None] | None:
        """Complete a task. Returns its queue and an event; None if the lease is unknown."""
        for each in self.queues():
            lease = each.complete_lease(request.lease_id, now)
            if lease is not None:
                return each, self._completed(each, lease.task.id, request)
        return None

    def _completed(
        self, queue: TaskQueue, task_id: int, request: pb.CompleteTaskRequest
    ) -> TaskEvent | None:
        if queue.kind == pb.TASK_SNAPSHOT:
            return self.snapshot.written(request.snapshot)
        try:
            if queue is self.fitting.queue:
                return self.fitting.observed(request.statistics)
            if queue.kind == pb.TASK_EVALUATE and self.evaluations is not None:
                self.evaluations.evaluated(task_id, request.metrics.states)
        except UsageError as error:
            return Failure(str(error), usage=True)
        if queue.kind == pb.TASK_SUMMARIZE and self.evaluations is not None:
            return self.evaluations.summarized(request.values.values)
        return None

    def release(self, request: pb.ReleaseTaskRequest, now: float) -> tuple[TaskQueue, None] | None:
        """Return an unfinished task to its queue; None if the lease is unknown."""
        for each in self.queues():
            if each.release(request.lease_id, now, committed=request.counts.offset) is not None:
                return each, None
        return None

    def fail(
        self, request: pb.FailTaskRequest, now: float
    ) -> tuple[TaskQueue, TaskEvent | None] | None:
        """Return a task to its queue after the user's code raised; None if the lease is unknown."""
        for each in self.queues():
            count = each.fail(request.lease_id, now, committed=request.counts.offset)
            if count and each is self.snapshot.queue and not request.fatal:
                self.snapshot.drop()
                return each, SnapshotFailed(request.error)
            if count:
                return each, self._failures.judge(request, count)
        return None

    # ---- what is lost ----

    def died(self, exit: ProcessExit, now: float, *, log: str) -> RecordsSkipped | Failure | None:
        """Count the death of a worker against the oldest task that it holds. Returns the event that
        follows: the task failed, or some of its records are left out from now on.

        Args:
            log: path of the worker's log.
        """
        queues = [each for each in self.queues() if each.held_by(exit.id)]
        if not queues:
            return None
        queue = min(queues, key=lambda each: each.held_by(exit.id)[0].id)
        leases = queue.held_by(exit.id)
        suspect = queue.suspects.died(leases, now, by_kill=exit.was_killed)
        limit = self._config.cluster.max_task_failures
        if suspect is None or suspect.died_at is None or suspect.deaths < limit:
            return None
        skips = queue.kind == pb.TASK_TRAIN
        event = verdict(self._config, exit, suspect.died_at.name, log=log, skips=skips)
        if isinstance(event, RecordsSkipped):
            queue.suspects.skip(leases[0].task.id)
        return event

    def void(self) -> None:
        """Return every leased task to its queue; late reports on the leases are ignored."""
        for each in self.queues():
            each.void()

    def restore(self, saved: Saved | None) -> None:
        """Reset to a checkpoint, or to the beginning; every lease is void."""
        self.snapshot.drop()
        self.restore_main(saved)
        if self.evaluations is not None:
            epochs = whole_epochs(self.main)
            self.evaluations.restore(saved.manifest.steps if saved is not None else 0, epochs)

    def restore_main(self, saved: Saved | None) -> None:
        """Reset the training tasks to those of a checkpoint, or to the beginning."""
        if self.main is None:
            return
        if isinstance(self.main.space, StreamSpace):
            self.main.space.restore(saved.manifest.data[PLAN] if saved is not None else None)
        self.main.restore(saved.progress if saved is not None else Watermarks())

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        if not self.ready:
            return {}
        return {
            "records_before": self.records_before,
            "epochs": self.main.space.epochs if self.main is not None else 0,
            "main": self.main.to_state() if self.main is not None else None,
            **(saved_plan(self.main.space) if self.main else {}),
            "evaluations": self.evaluations.to_state() if self.evaluations is not None else None,
            "snapshot": self.snapshot.to_state(),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._restored = (state, now) if state else None  # takes effect once the data is known

    def begin_leases_after(self, lease_id: int) -> None:
        """Number leases from above ``lease_id``, which exceeds those of all earlier masters."""
        self._leases = self._first_lease = lease_id

    def _rebuild(self, state: Mapping[str, Any], now: float) -> None:
        self.records_before = state["records_before"]
        if self.main is not None:
            if isinstance(self.main.space, StreamSpace):
                self.main.space.restore(state[PLAN])
            elif state["epochs"] != self.main.space.epochs:
                self.main.space.extend(state["epochs"])
            self.main.from_state(state["main"], now)
        if self.evaluations is not None:
            self.evaluations.from_state(state["evaluations"], now)
        self.snapshot.from_state(state["snapshot"], now)

    def _numbers(self) -> Iterator[int]:
        while True:
            self._leases += 1
            yield self._leases


TaskEvent = SnapshotWritten | SnapshotFailed | EvaluationResult | Event | Failure
"""Events that follow the completion or failure of a task."""
