"""The loop of a worker in a ring: every member takes the same steps; other tasks come between.

Training tasks are not leased here: the position in the data is part of what the members share.
Evaluations, snapshots and the like are leased by the master as ever, and done between two steps.
"""

from __future__ import annotations

import logging
import math
import threading
from functools import partial

from torch_edl.config import JobConfig
from torch_edl.data.batch import Batch
from torch_edl.data.batches import Batches
from torch_edl.data.feeder import FeedError
from torch_edl.data.order import Pass, Span
from torch_edl.data.samples import SKIP, note
from torch_edl.data.task_records import TaskOrder, TaskRecords
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.data.tasks import (
    Item,
    ModelTask,
    NoMoreTasks,
    RecordTask,
    TaskFailed,
    TaskPrefetcher,
)
from torch_edl.engine.replica import Replica
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import MasterRendezvous
from torch_edl.engine.ring.replicated import ReplicatedModel
from torch_edl.errors import DismissedError, MasterLostError
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.master_client.leases import Lease, LeaseClient, TaskResult
from torch_edl.trainer.model_file import ModelFile
from torch_edl.trainer.one_off import OneOffTasks
from torch_edl.trainer.step import Step
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

_IDLE_S = 0.1


def task_space(config: JobConfig, shards: list[pb.SourceShard]) -> TaskSpace:
    """The tasks of a training job; the master counts by the same."""
    return TaskSpace(
        [Shard(s.name, s.records, s.size, s.mtime_ns) for s in shards],
        config.records_per_task,
        epochs=config.data.epochs,
        seed=config.train.seed,
        shuffle=config.data.shuffle,
        batch_size=config.data.batch_size,
        max_steps=config.train.max_steps,
    )


def make_ring_loop(
    session: ModelFile,
    ready: pb.Start,
    master: Stub,
    leases: LeaseClient,
    heartbeat: Heartbeat,
    progress: WorkerStatus,
    config: JobConfig,
) -> RingLoop:
    """The loop of a worker that was told to join a ring."""
    scheduler = session.scheduler
    engine = RingEngine(
        Replica(session.model, [session.optimizer], [] if scheduler is None else [scheduler]),
        MasterRendezvous(
            master,
            leases.worker_id,
            heartbeat,
            progress,
            heartbeat_timeout_s=config.cluster.heartbeat_timeout_s,
        ),
    )
    step = Step(
        session.contract,
        session.model,
        on_nan=config.train.on_nan,
        log_layers=config.train.log_layers,
    )
    space = task_space(config, list(ready.shards))
    model = ReplicatedModel(session.contract, engine, space)
    one_off = OneOffTasks(session, model, step, leases, progress)  # type: ignore[arg-type]
    return RingLoop(
        session, step, one_off, engine, model, space, leases, heartbeat, progress, config
    )


class RingLoop:
    """Trains in step with the others, and does what else there is.

    Args:
        model: the user's, in this process.
        space: the training tasks.
    """

    def __init__(
        self,
        session: ModelFile,
        step: Step,
        one_off: OneOffTasks,
        engine: RingEngine,
        model: ReplicatedModel,
        space: TaskSpace,
        leases: LeaseClient,
        heartbeat: Heartbeat,
        progress: WorkerStatus,
        config: JobConfig,
    ) -> None:
        self._session = session
        self._step = step
        self._one_off = one_off
        self._engine = engine
        self._model = model
        self._leases = leases
        self._heartbeat = heartbeat
        self._progress = progress
        self._scheduler = engine.replica.stateful[0] if engine.replica.stateful else None
        seed = config.train.seed if config.data.shuffle else None
        self._records = TaskRecords(space, session.feeder.source, seed)
        self._order = TaskOrder(space)
        self._batches = Batches(
            self._records,
            Pass(
                records=space.records_before(space.tasks_per_epoch) if space.total else 1,
                batch_size=config.data.batch_size,
                epochs=config.data.epochs,
                end=space.total_records,
            ),
            self._order,
            {
                "collate_fn": partial(session.feeder.batch, shard=space.task(0).shard),
                "num_workers": config.data.loader_workers,
                "pin_memory": config.data.pin_memory,
            },
        )
        self._total = space.total_records
        self._loader = TaskPrefetcher(leases, session.feeder.prepare)
        self._writing: threading.Thread | None = None
        self._ended = False

    def run(self) -> int:
        """Until the end; the exit code of the process."""
        heartbeat = self._heartbeat
        heartbeat.on_broken_ring = self._engine.interrupt
        try:
            self._engine.join()
            self._loader.start()
            self._session.call_back("on_train_begin", self._model.model)
            try:
                while not heartbeat.lost.is_set() and self._advance():
                    pass
            except DismissedError as error:
                if error.last:
                    self._do_last_errands()
                raise
            if self._ended and self._engine.last:
                self._do_last_errands()
            self._session.call_back("on_train_end", self._model.model)
        except DismissedError as error:
            log.info("leaving: %s", error)
        finally:
            self._loader.stop()
            self._batches.close()
            if self._writing is not None:
                self._writing.join()
            self._engine.leave(finished=False)
        return 0

    def _advance(self) -> bool:
        """One update, or one other thing; False at the end of the job."""
        done = self._engine.replica.position.records >= self._total
        item = self._loader.get(timeout_s=_IDLE_S) if done else self._loader.poll()
        if isinstance(item, NoMoreTasks):
            # Told to leave while others train on: at the end of a step, which all of them agree
            # on, so that nobody waits in a collective.
            self._ended = True
        if self._ended and (done or self._engine.world == 1):
            return False
        if isinstance(item, NoMoreTasks):
            return True
        if item is not None:
            self._do(item)
        elif done:
            self._progress.phase = "waiting"
            self._engine.idle()
        else:
            self._update()
        return True

    def _do_last_errands(self) -> None:
        """Writes the model, if the job is to end: all members leave, rank 0 keeps it."""
        if self._engine.rank or self._heartbeat.lost.is_set():
            return
        self._loader.stop()
        for lease in self._leases.snapshots():
            self._snapshot(lease)
            if self._writing is not None:
                self._writing.join()

    # ---- training ----

    def _update(self) -> None:
        engine = self._engine
        self._progress.phase = "training"
        start = engine.replica.position.records
        part = self._batches.data.part(start, engine.rank, engine.world)
        engine.set_update_size(part.records)
        loss = float("nan")
        alone, records, tried, damaged = engine.world == 1, part.records, False, 0
        for optimizer in engine.replica.optimizers:
            optimizer.zero_grad()  # also where feed left no record of a minibatch
        for span in part.spans:
            batch = self._take(span, start)
            damaged += len(batch.damaged)
            engine.begin((span[1] - span[0]) / part.records, last=True, lead=engine.rank == 0)
            if batch.size:
                tried, loss = True, self._gradient(batch)
        if not part.spans:
            engine.begin(0.0, last=True, lead=False)
        # A member that has no gradient takes the others' all the same.
        engine.complete()
        if engine.live:
            for optimizer in engine.replica.optimizers:
                optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
        if engine.finish():
            self._progress.damaged += damaged
            if alone and tried and not math.isfinite(loss):
                engine.replica.position.left_out += records
            self._count(loss)
        engine.reform_if_asked()

    def _gradient(self, batch: Batch) -> float:
        loss = self._step.loss(batch)
        if loss is None:
            return math.nan
        self._step.backward(loss, batch)
        return self._step.last_loss

    def _take(self, span: Span, start: int) -> Batch:
        """A minibatch; what is left out of it, or cannot be read, is named."""
        engine = self._engine

        def name(index: int) -> str:
            return self._records.name(self._order.indices(span), index)

        try:
            batch: Batch = self._batches.take(span, start, engine.rank, engine.world)
            note(batch.damaged, name)
            return batch
        except FeedError as error:
            failed = error
        # Read once more, in this process, where a DataLoader's left only a text of it.
        found = self._reread(span) or failed
        where = "" if found.index is None else f" for {name(found.index)}; {SKIP}"
        raise FeedError(f"{found}{where}") from found.__cause__

    def _reread(self, span: Span) -> FeedError | None:
        try:
            self._batches.sample(span)
        except FeedError as error:
            return error
        return None

    def _count(self, loss: float) -> None:
        progress, position = self._progress, self._engine.replica.position
        progress.position = progress.records = position.records
        progress.steps = progress.version = position.step
        progress.pass_records = self._total
        progress.left_out = position.left_out
        if math.isfinite(loss):
            progress.add_loss(loss)
        self._session.call_back("on_batch_end", position.step, loss)
        if position.records >= self._total:
            self._heartbeat.beat()

    # ---- everything else ----

    def _do(self, item: Item) -> None:
        if isinstance(item, TaskFailed):
            if item.lease is None:
                raise item.error
            self._one_off.fail(item.lease, item.error)
        elif isinstance(item, ModelTask) and item.lease.kind == pb.TASK_SNAPSHOT:
            self._snapshot(item.lease)
        elif isinstance(item, RecordTask | ModelTask):
            self._one_off.do(item)

    def _snapshot(self, lease: Lease) -> None:
        """Copies the model now; training goes on while it is written."""
        if self._writing is not None:
            self._writing.join()
        write = self._model.snapshot()

        def run() -> None:
            try:
                snapshot = write(lease.directory)
                self._leases.complete(lease, TaskResult(snapshot=snapshot))
            except OSError as error:
                self._one_off.fail(lease, error)
            except MasterLostError as error:
                log.warning("the snapshot is of no use: %s", error)

        self._writing = threading.Thread(target=run, name="snapshot", daemon=True)
        self._writing.start()
