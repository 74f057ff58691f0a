"""Updates by position: all members of a ring train the same updates in the same order.

The records of an update are a function of the position in the data. The position is part of the
members' shared state, so a failed update is repeated with the same records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch_edl.data.batch import SKIP, note
from torch_edl.data.feeder import FeedError
from torch_edl.data.passes import Pass, Span, without
from torch_edl.data.task_reader import TaskRecords
from torch_edl.data.task_space import Piece, TaskSpace
from torch_edl.data.tasks import LeasedTasks, ModelTask, NoMoreTasks, RecordTask, TaskFailed
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import DismissedError, MinibatchError
from torch_edl.interfaces import Batch, Minibatch, Update
from torch_edl.master_client.session import MasterSession
from torch_edl.tables.watermarks import Watermarks
from torch_edl.training.one_off import MOST_UNTRIED, OneOffTasks
from torch_edl.training.user_model import MemberBatches, UserModel

_IDLE_S = 0.1


class PositionUpdates(ABC):
    """Base class of sources of updates by position; see
    :class:`~torch_edl.training.loop.UpdateSource`."""

    def __init__(self, engine: RingEngine, batches: MemberBatches) -> None:
        self._engine = engine
        self._batches = batches

    def recover(self, update: Update, error: BaseException) -> None:
        """Raise the error: a failure of user code is final. A broken ring raises no error here."""
        raise error

    def close(self) -> None:
        """Stop the readers."""
        self._batches.close()

    def _update_at(self, start: int, data: Pass) -> Update:
        """Return this member's part of the update that begins at ``start``."""
        ring = self._engine.membership
        part = data.part(start, ring.rank, ring.world)

        def minibatches() -> Iterator[Minibatch]:
            for number, span in enumerate(part.spans):
                with ring.reporting(span, partial(self._name, span)):
                    batch = self._take(span, start)
                    yield Minibatch(number, span[0], self._records_of(span), batch)
            if not part.spans:
                spare = self._spare((start, start + min(2, part.records)))
                yield Minibatch(0, start, 0, spare)

        return Update(
            first=self._engine.replica.position.records,
            last=start + part.records,
            minibatches=minibatches(),
            count=len(part.spans) or 1,
            records=part.records,
        )

    def _take(self, span: Span, start: int) -> Any:
        """Return the minibatch at ``span``, which belongs to the update at ``start``."""
        ring = self._engine.membership
        return self._batches.take(span, start, ring.rank, ring.world)

    def _records_of(self, span: Span) -> int:
        """Return the number of records at ``span`` that are trained."""
        return span[1] - span[0]

    @abstractmethod
    def _name(self, span: Span) -> str:
        """Return the name of the records at ``span``, for messages."""

    def _spare(self, span: Span) -> Any:
        """Return the batch of a member without records in the update, which takes part in the
        reduction nevertheless.

        Args:
            span: some records of the update.
        """
        return self._batches.sample(span)


class FileUpdates(PositionUpdates):
    """The updates of a model file in a ring; see
    :class:`~torch_edl.training.loop.UpdateSource`.

    Training tasks are not leased. The master leases other tasks, such as evaluations and snapshots,
    which are executed between two updates.

    Args:
        space: the training tasks, which determine the order of the records.
        tasks: the leased tasks.
    """

    def __init__(
        self,
        file: UserModel,
        engine: RingEngine,
        space: TaskSpace,
        tasks: LeasedTasks,
        one_off: OneOffTasks,
        session: MasterSession,
    ) -> None:
        self._file = file
        self._tasks = tasks
        self._one_off = one_off
        self._heartbeat = session.heartbeat
        self._status = session.progress
        data = file.config.data
        self._records = TaskRecords(space, file.feeder.reader)
        self._space = space
        self._data = Pass(
            records=space.records_before(space.tasks_per_epoch) if space.total else 1,
            batch_size=data.batch_size,
            even=True,
            epochs=data.epochs,
            end=space.total_records,
        )
        super().__init__(engine, file.batches(self._records, self._data, space))
        self._total = space.total_records
        self._per_epoch = file.config.train.evaluates_epochs
        self._alone = False
        self._damaged = 0
        # Spans of the current minibatch; and True if each of their records is one sample.
        self._at_work: tuple[Sequence[Span], bool] | None = None
        self._ended = False

    def updates(self) -> Iterator[Update]:
        engine = self._engine
        engine.join()
        self._file.call_back("on_train_begin", engine.replica.model)
        while not self._heartbeat.lost.is_set():
            for end in self._heartbeat.take_epoch_ends():
                self._file.call_back("on_epoch_end", *end)
            done = engine.replica.position.records >= self._open
            item = self._tasks.get(timeout_s=_IDLE_S) if done else self._tasks.poll()
            if isinstance(item, NoMoreTasks):
                # A member that must leave while others continue leaves at the end of a step that
                # all members agree on, so that no member waits in a collective.
                self._ended = True
            alone = engine.membership.world == 1
            if self._ended and (done or alone):
                return
            if isinstance(item, RecordTask | ModelTask | TaskFailed):
                self._one_off.do(item)
            elif done:
                self._status.phase = "waiting"
                engine.idle()
            else:
                self._status.phase = "training"
                self._alone, self._damaged = alone, 0
                yield self._update_at(engine.replica.position.records, self._data)

    @property
    def _open(self) -> int:
        """Number of records that may be trained now. The next epoch may wait for an evaluation."""
        if not self._per_epoch:
            return self._total
        return min(self._total, max(1, self._heartbeat.epochs_open) * self._data.records)

    def after(self, update: Update, *, counted: bool) -> None:
        if counted:
            self._count(update)
        self._engine.reform_if_asked()

    def _count(self, update: Update) -> None:
        status, position, loss = self._status, self._engine.replica.position, update.loss
        status.damaged += self._damaged
        if self._alone and self._damaged < update.records and not math.isfinite(loss):
            position.left_out += update.records
        status.position = status.records = position.records
        status.version = position.step
        status.stepped(position.step)
        status.pass_records = self._total
        status.left_out = position.left_out
        if math.isfinite(loss):
            status.note({"loss": loss})
        self._file.call_back("on_batch_end", position.step, loss)
        if position.records >= self._open:
            self._heartbeat.beat()

    def recover(self, update: Update, error: BaseException) -> None:
        """Raise the error with the names of the records of this member's minibatch."""
        if not isinstance(error, MinibatchError) or self._at_work is None:
            raise error
        spans, is_by_record = self._at_work
        pieces = self._pieces(spans)
        if error.sample is None or not is_by_record:
            if not self._status.steps:
                pieces = self._pieces([(at, min(at + MOST_UNTRIED, end)) for at, end in spans[:1]])
            more = sum(last - first for first, last in spans)
            more -= sum(last - first for _, first, last in pieces)
            where = self._records.names(pieces) + f" and {more:,} more" * (more > 0)
        else:
            where = self._records.name(pieces, error.sample)
        raise type(error)(f"{error} ({where})") from error.__cause__

    def leave(self) -> bool:
        return self._engine.settle()

    def has_last_model(self, dismissed: DismissedError | None) -> bool:
        """Return True on rank 0 if all members leave, so that this process must write the model."""
        last = self._ended and self._engine.last if dismissed is None else dismissed.last
        return last and self._engine.membership.rank == 0

    # ---- minibatches ----

    def _spare(self, span: Span) -> Batch:
        return Batch(None, None, 0)

    def _pieces(self, spans: Sequence[Span]) -> list[Piece]:
        return [piece for span in spans for piece in self._space.pieces(span)]

    def _name(self, span: Span) -> str:
        return self._records.names(self._space.pieces(span))

    def _records_of(self, span: Span) -> int:
        return super()._records_of(span) - self._engine.membership.skipped(span)

    def _take(self, span: Span, start: int) -> Batch:
        """Return the minibatch at ``span``. Warnings and errors name the damaged samples."""
        ring = self._engine.membership
        spans = without(span, ring.skip)
        self._damaged += ring.skipped(span)
        if not spans:
            return Batch(None, None, 0)
        # Not prefetched: a death while the records are read must fall into the span that this
        # process has reported.
        alone = ring.reports_spans or any(last > start for _, last in ring.skip)

        def name(index: int) -> str:
            return self._records.name(self._pieces(spans), index)

        try:
            batch: Batch = self._batches.sample(*spans) if alone else super()._take(span, start)
            note(batch.damaged, name)
            self._damaged += len(batch.damaged)
            self._at_work = spans, batch.size == sum(last - first for first, last in spans)
            return batch
        except FeedError as error:
            found = error
        # The records are read again in this process: a process of a DataLoader reports only the
        # text of the error.
        try:
            self._batches.sample(*spans)
        except FeedError as error:
            found = error
        where = "" if found.index is None else f" for {name(found.index)}; {SKIP}"
        raise FeedError(f"{found}{where}") from found.__cause__


def watermarks(space: TaskSpace, position: int) -> Watermarks:
    """Return the watermarks of a model that was trained on all records before a position: a number
    of whole tasks, and the leading records of one further task."""
    if position >= space.total_records:
        cut = space.cut  # the task that continues with a later limit
        return Watermarks(space.total) if cut is None else Watermarks(cut.id, {cut.id: cut.records})
    task, offset = space.at(position)
    return Watermarks(task, {task: offset} if offset else {})
