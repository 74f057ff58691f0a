"""Updates of leased tasks: training tasks in a pipeline, everything else one at a time.

The updates of this task and the next are handed to the engine as far ahead as the engine looks,
and a task is reported once its last update is acknowledged. Whatever goes wrong ends in one of
three ways: the servers are lost (what is not acknowledged is given back and done again), the
user's code failed (the task is reported with the records that were at work; a script just raises),
or the process leaves.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeGuard

from torch_edl.data.batch import Update
from torch_edl.data.feeder import FeedError
from torch_edl.data.leases_ahead import NoMoreTasks, PassOver, ServersChanged
from torch_edl.data.randomness import is_same_order
from torch_edl.data.tasks import Item, ModelTask, RecordTask, TaskFailed, Tasks
from torch_edl.engine.base import LeasedEngine
from torch_edl.errors import (
    DismissedError,
    EdlError,
    MasterLostError,
    MinibatchError,
    ServersLostError,
    ServersReplacedError,
)
from torch_edl.master_client.leases import HeldLease, LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.training.one_off import OneOffTasks
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# Seconds that a word of the master about servers that do not answer is waited for, before they are
# tried again: a server that is dead is noticed and replaced in less.
_RETRY_SERVERS_S = 2.0
_ASK_AGAIN_S = 0.1


class LeasedUpdates:
    """See :class:`~torch_edl.training.source.UpdateSource`.

    Args:
        one_off: does the other tasks of a model file, and reports those that fail. None: a script,
            which has no other tasks, and whose errors are raised.
        call_back: called with the name of an event and its arguments: ``on_train_begin``,
            ``on_batch_end`` with steps and loss, ``on_task_end`` with the task, ``on_epoch_end``
            with the epoch and the figures of the evaluation after it.
    """

    def __init__(
        self,
        engine: LeasedEngine,
        tasks: Tasks,
        leases: LeaseClient,
        session: MasterSession,
        *,
        one_off: OneOffTasks | None = None,
        call_back: Callable[..., None] = lambda event, *args: None,
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._leases = leases
        self._session = session
        self._heartbeat = session.heartbeat
        self._status = session.progress
        self._one_off = one_off
        self._call_back = call_back
        self._connected = self._begun = False
        self._ended = self._pass_over = False
        # Training tasks whose updates are prefetched, trained or on their way, by lease.
        self._open: dict[int, tuple[HeldLease, TaskResult]] = {}
        self._stream: Iterator[Update] | None = None  # of the task whose updates are handed out
        self._streamed: RecordTask
        self._upcoming: deque[Update] = deque()  # prefetched, not trained
        self._deferred: Item | None = None  # waits until the pipeline is empty

    # ---- the pipeline ----

    def updates(self) -> Iterator[Update]:
        self._pass_over = False
        while True:
            self._leave_if_asked()
            for end in self._heartbeat.take_epoch_ends():
                self._call_back("on_epoch_end", *end)
            try:
                self._advance()
            except ServersLostError as error:
                self.lose_servers(error)
            if self._upcoming:
                update = self._upcoming.popleft()
                update.retired_before = self._leases.retired_before
                self._status.phase = "training"
                yield update
            elif self._ended or self._pass_over:
                self._leases.settle()
                return

    def _advance(self) -> None:
        """Has an update ready, or does one other item."""
        self.connect()
        self._fill()
        # After a task that failed the engine has let go of the servers.
        if self._upcoming or not self._connected:
            return
        self._count(self._engine.acknowledged(wait=True))
        item, self._deferred = self._deferred or self._tasks.poll(), None
        if item is None:
            self._status.phase = "waiting"
            item = self._tasks.get(timeout_s=0.2)
        if item is not None and not self._open_task(item):
            self._do(item)

    def _fill(self) -> None:
        """Prefetches updates of this task and the next, as far as the engine looks ahead."""
        while len(self._upcoming) < 1 + self._engine.depth and self._deferred is None:
            if self._stream is None:
                item = self._tasks.poll()
                if item is None:
                    return
                if not self._open_task(item):
                    self._deferred = item
                continue
            update = None
            try:
                update = next(self._stream, None)
                if update is None:
                    self._stream = None
                    continue
                update.incarnation = self._streamed.incarnation
                self._compare_first(update)
                self._engine.prefetch(update)
            except (Exception, SystemExit) as error:
                self._fail(self._streamed.lease, update, error)
                return
            self._upcoming.append(update)

    def _compare_first(self, update: Update) -> None:
        """Compares the first records of a task with those of the attempt before.

        Raises:
            FeedError: they differ, and the model has some of the records.
        """
        lease, first = self._streamed.lease, update.first_records
        if first is None:
            return
        known, is_applied = lease.first, update.first > 0 or not self._engine.knows_marks
        if not known.records or known.framework != first.framework or not is_applied:
            self._leases.begin(lease, first)
        elif not is_same_order(known.order, first.order):
            raise FeedError(
                "feed returned other first records than in an earlier attempt on this task: some "
                "records would be trained twice and others never; let feed shuffle and sample with "
                f"random, numpy.random or {first.framework}'s global generator, which are seeded "
                "for each task, or seed a generator of its own with a constant"
            )

    def _open_task(self, item: Item) -> bool:
        """Takes a training task in hand; False if the item is something else."""
        if not _is_training(item):
            return False
        lease = item.lease
        # A task that was prepared for an earlier incarnation of the servers is void.
        if item.incarnation == self._leases.incarnation:
            # Before the servers are asked: if they are lost, it is given back with the others.
            done = TaskResult(offset=lease.offset)
            self._open[lease.lease_id] = lease, done
            if lease.retried or self._engine.knows_marks:
                # A master that was started again may have forgotten what is done, and a server
                # whose machine lost its power may have less than the master knows.
                done.offset = min(self._engine.committed(lease), lease.end - lease.start)
            offset = done.offset
            if offset >= lease.end - lease.start:
                # Who did all of it was gone before it could say so, or the master was.
                self._leases.report(*self._open.pop(lease.lease_id))
                return True
            self._streamed = item
            try:
                self._stream = item.updates(offset)
            except (Exception, SystemExit) as error:
                self._fail(lease, None, error)
        return True

    def after(self, update: Update, *, counted: bool) -> None:
        """Counts what is acknowledged by now."""
        if not counted:
            update.losses.clear()
            self._upcoming.appendleft(update)
        self._count(self._engine.acknowledged())

    def _count(self, acknowledged: Sequence[Update]) -> None:
        for update in acknowledged:
            assert update.lease is not None
            _, done = self._open[update.lease.lease_id]
            done.records += update.last - update.first
            done.offset = update.last
            done.steps += update.count
            done.nan_steps += update.not_finite
            done.damaged += update.damaged
            self._status.records += update.last - update.first
            self._status.steps += update.count
            for loss in update.losses:
                if math.isfinite(loss):
                    self._status.add_loss(loss)
            self._call_back("on_batch_end", self._status.steps, update.loss)
            if update.ends_task:
                self._leases.report(*self._open.pop(update.lease.lease_id))
                self._call_back("on_task_end", update.lease.task_id)

    # ---- everything but training ----

    def _do(self, item: Item) -> None:
        if isinstance(item, ServersChanged):
            self._forget()
            self._session.cluster = item.cluster
        elif isinstance(item, NoMoreTasks):
            self._ended = True
            if item.leave:
                raise DismissedError("asked to leave")
        elif isinstance(item, PassOver):
            # A script may have left an earlier pass before it took the word of its end.
            self._pass_over = item.epochs >= self._leases.epochs
        elif self._one_off is not None and not _is_training(item):
            self._one_off.do(item)
        elif isinstance(item, TaskFailed):
            raise item.error

    def has_last_model(self, dismissed: DismissedError | None) -> bool:
        """Whether this process is to write the model; the master says whether there is one."""
        return True

    def close(self) -> None:
        """Leases and reports no more."""
        self._tasks.stop()
        self._leases.close()

    # ---- servers ----

    def connect(self) -> None:
        """Meets the servers of today, unless the engine knows them.

        Raises:
            ServersLostError: they do not answer.
        """
        if not self._connected:
            self._engine.connect(self._session.cluster)
            self._connected = True
        if not self._begun:
            self._begun = True
            self._call_back("on_train_begin", self._engine.model)

    def lose_servers(self, error: ServersLostError) -> None:
        """Gives back what is not acknowledged, and waits a while for word of other servers."""
        log.log(servers_lost_level(error), "parameter servers lost: %s", error)
        self._status.phase = "reconnecting"
        self._tasks.give_up()
        self._give_back(self._forget())
        deadline = time.monotonic() + _RETRY_SERVERS_S
        while time.monotonic() < deadline and not self._leaving():
            # What waited for the pipeline to be empty comes first: it may be that word.
            item, self._deferred = self._deferred, None
            item = item or self._tasks.get(timeout_s=_ASK_AGAIN_S)
            if isinstance(item, ServersChanged):
                self._session.cluster = item.cluster
                return
            if isinstance(item, NoMoreTasks):
                self._deferred = item
                return
            if isinstance(item, RecordTask | ModelTask):
                self._leases.release(item.lease)
                time.sleep(_ASK_AGAIN_S)
            elif item is not None:
                self._do(item)

    def disconnect(self) -> None:
        """Lets go of the servers: the next :meth:`connect` meets others, or these again."""
        self._engine.close()
        self._connected = False

    def _forget(self) -> list[tuple[HeldLease, TaskResult]]:
        """Forgets everything that is not acknowledged; returns the tasks that were in hand."""
        self.disconnect()
        return self._let_go()

    def _let_go(self) -> list[tuple[HeldLease, TaskResult]]:
        self._upcoming.clear()
        self._stream = None
        held = list(self._open.values())
        self._open.clear()
        return held

    def _give_back(self, held: Sequence[tuple[HeldLease, TaskResult]]) -> None:
        for lease, done in held:
            self._leases.release(lease, done)

    # ---- errors ----

    def recover(self, update: Update, error: BaseException) -> None:
        assert update.lease is not None
        if isinstance(error, ServersLostError):
            self.lose_servers(error)
        else:
            self._fail(update.lease, update, error)

    def _fail(self, lease: HeldLease, update: Update | None, error: BaseException) -> None:
        """Reports a task as failed, and gives back the others that are in the pipeline."""
        if self._leaving():
            # What a signal broke (a reader, a connection) is no failure of the task.
            log.warning("while leaving: %s", error)
            self._leave()
        if self._one_off is None or isinstance(error, MasterLostError | ServersLostError):
            raise error
        try:
            # What was trained before is not at fault: let it become part of the model.
            self._count(self._engine.acknowledged(wait=True))
        except EdlError as lost:
            log.warning("the updates before the failure: %s", lost)
        _, done = self._open.get(lease.lease_id, (lease, TaskResult(offset=lease.offset)))
        others = [held for held in self._forget() if held[0].lease_id != lease.lease_id]
        where = ""
        if update is not None and not isinstance(error, FeedError):
            where = update.where(error.sample if isinstance(error, MinibatchError) else None)
        self._one_off.fail(lease, error, where=where, done=done)
        self._give_back(others)

    # ---- leaving ----

    def leave(self) -> bool:
        """What was trained is counted. The tasks that are in hand are given back; other workers may
        do the rest of them."""
        counted = self._engine.settle()
        # The job may be closed, and its master gone.
        with contextlib.suppress(MasterLostError, ValueError):
            self._count_last()
            self._give_back(self._let_go())
            self._tasks.give_up()
        return counted

    def _leaving(self) -> bool:
        return self._heartbeat.draining.is_set() or self._heartbeat.lost.is_set()

    def _leave_if_asked(self) -> None:
        if self._leaving():
            self._leave()

    def _leave(self) -> NoReturn:
        """What is trained becomes part of the model, the rest is given back."""
        self._status.phase = "draining"
        self._count_last()
        held = self._forget()
        if not self._heartbeat.lost.is_set():
            # An absent master hears of the end of this process, or misses its heartbeats.
            with contextlib.suppress(MasterLostError):
                self._give_back(held)
                self._tasks.give_up()
        raise DismissedError("the job continues without this worker, or is over")

    def _count_last(self) -> None:
        """Waits for the push under way. If it is lost, its records are given back."""
        try:
            self._count(self._engine.acknowledged(wait=True))
        except EdlError as error:
            log.warning("the last push is lost: %s", error)


def servers_lost_level(error: ServersLostError) -> int:
    """The level at which to log that servers are lost: nobody needs to hear it again where the
    master has said why."""
    return logging.INFO if isinstance(error, ServersReplacedError) else logging.WARNING


def _is_training(item: Item) -> TypeGuard[RecordTask]:
    return isinstance(item, RecordTask) and item.lease.kind == pb.TASK_TRAIN
