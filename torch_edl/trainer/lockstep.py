"""Updates by position: every member of a ring takes the same ones, in the same order.

Which records an update has is a function of the position in the data, which is part of what the
members share. So an update that failed is taken again from the same place.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch_edl.data.batch import SKIP, Batch, Minibatch, Update, note
from torch_edl.data.batches import Batches, StreamBatches, TaskRecords
from torch_edl.data.feeder import FeedError
from torch_edl.data.order import Pass, Span
from torch_edl.data.task_space import TaskSpace
from torch_edl.data.tasks import Item, ModelTask, NoMoreTasks, RecordTask, TaskFailed, Tasks
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import DismissedError
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.trainer.model_file import ModelFile
from torch_edl.trainer.one_off import OneOffTasks

log = logging.getLogger(__name__)

Take = Callable[[Span, int], Any]
"""From a span, and the start of its update, to the minibatch there."""

_IDLE_S = 0.1


def update_at(engine: RingEngine, data: Pass, start: int, take: Take, spare: Take) -> Update:
    """This member's part of the update that begins at ``start``.

    Args:
        spare: makes the batch of a member that has no record of the update, and takes the others'
            gradients all the same; called with a span of records that are in the update.
    """
    part = data.part(start, engine.rank, engine.world)

    def minibatches() -> Iterator[Minibatch]:
        for number, span in enumerate(part.spans):
            yield Minibatch(number, span[0], span[1] - span[0], take(span, start))
        if not part.spans:
            yield Minibatch(0, start, 0, spare((start, start + min(2, part.records)), start))

    return Update(
        first=engine.replica.position.records,
        last=start + part.records,
        minibatches=minibatches(),
        count=len(part.spans) or 1,
        records=part.records,
    )


class PassUpdates:
    """The updates of one pass of a script; see :class:`~torch_edl.trainer.loop.Source`.

    Args:
        number: of the pass.
        check: see :meth:`~torch_edl.trainer.loop.Source.check`.
        after_update: called after each update that counts, with the data as far as their end is
            known.
        between: called after each update.
    """

    def __init__(
        self,
        engine: RingEngine,
        batches: Batches | StreamBatches,
        number: int,
        *,
        check: Callable[[], None],
        after_update: Callable[[Pass], None],
        between: Callable[[], None],
    ) -> None:
        self.check = check
        self._engine = engine
        self._batches = batches
        self._number = number
        self._after_update = after_update
        self._between = between
        self._data = batches.data

    def updates(self) -> Iterator[Update]:
        """See :class:`~torch_edl.trainer.loop.Source`."""
        engine = self._engine
        while (position := engine.replica.position).pass_index == self._number:
            self._data = self._batches.known_end(position.records, engine.world)
            start = self._data.next_start(position.records, engine.world)
            if start >= self._data.total:
                position.end()
                return
            yield update_at(engine, self._data, start, self._take, self._spare)
        # A ring broke, and the state that came then is of a member that is in a later pass.
        engine.catching_up = True

    def _take(self, span: Span, start: int) -> Any:
        return self._batches.take(span, start, self._engine.rank, self._engine.world)

    def _spare(self, span: Span, start: int) -> Any:
        return self._batches.sample(span)

    def after(self, update: Update, *, counted: bool) -> None:
        """See :class:`~torch_edl.trainer.loop.Source`."""
        if counted:
            self._after_update(self._data)
        self._engine.reform_if_asked()
        self._between()

    def recover(self, update: Update, error: BaseException) -> None:
        """An error of a script is the script's; a ring that breaks raises none."""
        raise error

    def leave(self) -> bool:
        """The next pass begins where it begins; until then the rest of this one is what a
        checkpoint goes on with."""
        if self._engine.replica.position.pass_index != self._number:
            return False
        return self._engine.settle()


class FileUpdates:
    """The updates of a model file in a ring; see :class:`~torch_edl.trainer.loop.Source`.

    Training tasks are not leased here. Evaluations, snapshots and the like are leased by the
    master as ever, and done between two updates.

    Args:
        space: the training tasks, in whose order the records are.
    """

    def __init__(
        self,
        file: ModelFile,
        engine: RingEngine,
        space: TaskSpace,
        tasks: Tasks,
        one_off: OneOffTasks,
        heartbeat: Heartbeat,
        status: WorkerStatus,
    ) -> None:
        self._file = file
        self._engine = engine
        self._tasks = tasks
        self._one_off = one_off
        self._heartbeat = heartbeat
        self._status = status
        data = file.config.data
        self._records = TaskRecords(space, file.feeder.reader)
        self._space = space
        self._batches = Batches(
            self._records,
            Pass(
                records=space.records_before(space.tasks_per_epoch) if space.total else 1,
                batch_size=data.batch_size,
                epochs=data.epochs,
                end=space.total_records,
            ),
            space.pieces,
            {
                "collate_fn": partial(file.feeder.batch, shard=space.task(0).shard),
                "num_workers": data.loader_workers,
                "pin_memory": data.pin_memory,
            },
        )
        self._total = space.total_records
        self._alone = False
        self._damaged = 0
        self._ended = False

    def updates(self) -> Iterator[Update]:
        """See :class:`~torch_edl.trainer.loop.Source`."""
        engine = self._engine
        engine.join()
        self._file.call_back("on_train_begin", engine.replica.model)
        while not self._heartbeat.lost.is_set():
            done = engine.replica.position.records >= self._total
            item = self._tasks.get(timeout_s=_IDLE_S) if done else self._tasks.poll()
            if isinstance(item, NoMoreTasks):
                # Told to leave while others train on: at the end of a step, which all of them
                # agree on, so that no member waits in a collective.
                self._ended = True
            if self._ended and (done or engine.world == 1):
                return
            if item is not None:
                self._do(item)
            elif done:
                self._status.phase = "waiting"
                engine.idle()
            else:
                self._status.phase = "training"
                self._alone, self._damaged = engine.world == 1, 0
                start = engine.replica.position.records
                yield update_at(engine, self._batches.data, start, self._take, self._spare)

    def check(self) -> None:
        """See :class:`~torch_edl.trainer.loop.Source`."""

    def after(self, update: Update, *, counted: bool) -> None:
        """See :class:`~torch_edl.trainer.loop.Source`."""
        if counted:
            self._count(update)
        self._engine.reform_if_asked()

    def _count(self, update: Update) -> None:
        status, position, loss = self._status, self._engine.replica.position, update.loss
        status.damaged += self._damaged
        if self._alone and self._damaged < update.records and not math.isfinite(loss):
            position.left_out += update.records
        status.position = status.records = position.records
        status.steps = status.version = position.step
        status.pass_records = self._total
        status.left_out = position.left_out
        if math.isfinite(loss):
            status.add_loss(loss)
        self._file.call_back("on_batch_end", position.step, loss)
        if position.records >= self._total:
            self._heartbeat.beat()

    def recover(self, update: Update, error: BaseException) -> None:
        """Another worker would fail in the same way: the job ends with this."""
        raise error

    def leave(self) -> bool:
        """See :class:`~torch_edl.trainer.loop.Source`."""
        return self._engine.settle()

    def has_last_model(self, dismissed: DismissedError | None) -> bool:
        """Whether this process is to write the model, since all members leave."""
        last = self._ended and self._engine.last if dismissed is None else dismissed.last
        return last and self._engine.rank == 0

    def close(self) -> None:
        """Ends the readers."""
        self._batches.close()

    def _do(self, item: Item) -> None:
        if isinstance(item, TaskFailed):
            if item.lease is None:
                raise item.error
            self._one_off.fail(item.lease, item.error)
        elif isinstance(item, RecordTask | ModelTask):
            self._one_off.do(item)

    # ---- minibatches ----

    def _spare(self, span: Span, start: int) -> Batch:
        return Batch(None, None, 0)

    def _take(self, span: Span, start: int) -> Batch:
        """A minibatch; samples that are left out of it, or cannot be read, are named."""

        def name(index: int) -> str:
            return self._records.name(self._space.pieces(span), index)

        try:
            batch: Batch = self._batches.take(span, start, self._engine.rank, self._engine.world)
            note(batch.damaged, name)
            self._damaged += len(batch.damaged)
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
