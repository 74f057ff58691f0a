"""Updates of leased tasks. Training tasks run in a pipeline, all other tasks one at a time.

The engine prefetches the updates of the current task and the next tasks. A task is reported as done
when its last update is acknowledged. There are three kinds of failure: the servers are lost, and
unacknowledged tasks are returned to the master; user code fails, and the task is reported as failed
with the names of its records (a script raises the error instead); or the process leaves.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeGuard

from torch_edl.data.feeder import FeedError
from torch_edl.data.randomness import is_same_order
from torch_edl.data.tasks import (
    Item,
    LeasedTasks,
    ModelTask,
    NoMoreTasks,
    PassOver,
    RecordTask,
    ServersChanged,
    TaskFailed,
)
from torch_edl.errors import (
    DismissedError,
    EdlError,
    MasterLostError,
    ServersLostError,
    ServersReplacedError,
)
from torch_edl.interfaces import LeasedEngine, Update
from torch_edl.master_client.leases import HeldLease, LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.training.one_off import OneOffTasks, failed_records
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# Seconds to wait for new servers from the master before the lost servers are called again; the
# master replaces a dead server in less time.
_RETRY_SERVERS_S = 2.0
_ASK_AGAIN_S = 0.1


class LeasedUpdates:
    """The updates of the tasks that are leased to this process; see
    :class:`~torch_edl.training.loop.UpdateSource`.

    Args:
        tasks: the leased tasks.
        one_off: executes all tasks other than training, and reports failed tasks. None: the process
            runs a script, which has no other tasks, and whose errors are raised.
        call_back: called with the name of an event and its arguments: ``on_train_begin`` with the
            model, ``on_batch_end`` with the number of steps and the loss, ``on_task_end`` with the
            id of the task, ``on_epoch_end`` with the epoch and the figures of its evaluation.
    """

    def __init__(
        self,
        engine: LeasedEngine,
        tasks: LeasedTasks,
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
        # Training tasks with updates that are not all acknowledged, by id of the lease.
        self._open: dict[int, tuple[HeldLease, TaskResult]] = {}
        self._stream: Iterator[Update] | None = None  # updates of the task of self._streamed
        self._streamed: HeldLease
        self._upcoming: deque[Update] = deque()  # prefetched, not yet trained
        self._deferred: Item | None = None  # waits until the pipeline is empty

    # ---- the pipeline ----

    def updates(self) -> Iterator[Update]:
        self._pass_over = False
        while True:
            if self._leaving():
                self._leave()
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
        """Prefetch an update, or execute one item other than training."""
        self.connect()
        self._fill()
        # After a failed task, `_fail` has dropped the pipeline together with the connection.
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
        """Prefetch updates of the current and the next tasks, up to the depth of the engine."""
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
                self._compare_first(update)
                with update.step():  # runs the model up to its last embedding
                    self._engine.prefetch(update)
            except BaseException as error:  # a panic of a Rust extension is no Exception
                self._fail(self._streamed, update, error)
                return
            self._upcoming.append(update)

    def _compare_first(self, update: Update) -> None:
        """Compare the first records of a task with those of the previous attempt.

        Raises:
            FeedError: the records differ, and the model may have been trained on some records of
                the task.
        """
        lease, first = self._streamed, update.first_records
        if first is None:
            return
        known = lease.first
        # Without records before the update, only an engine that holds the whole model knows that
        # no record was trained. A push of an earlier attempt may have reached some of the servers.
        may_be_trained = update.first > 0 or not self._engine.holds_model
        if not known.records or known.framework != first.framework or not may_be_trained:
            self._leases.begin(lease, first)
        elif not is_same_order(known.order, first.order):
            raise FeedError(
                "feed returned other first records than in an earlier attempt on this task: some "
                "records would be trained twice and others never; let feed shuffle and sample with "
                f"random, numpy.random or {first.framework}'s global generator, which are seeded "
                "for each task, or seed a generator of its own with a constant"
            )

    def _open_task(self, item: Item) -> bool:
        """Begin a training task; return False if the item is not a training task."""
        if not _is_training(item):
            return False
        lease = item.lease
        # A task for an earlier incarnation of the servers is ignored.
        if lease.incarnation == self._leases.incarnation:
            # Registered before the servers are called: if they are lost, the task is returned.
            done = TaskResult(offset=lease.offset)
            self._open[lease.lease_id] = lease, done
            if lease.retried or self._engine.holds_model:
                # A restarted master may have lost the newest reports. A server whose machine lost
                # power may have fewer records than the master knows.
                done.offset = min(self._engine.committed(lease), lease.end - lease.start)
            offset = done.offset
            if offset >= lease.end - lease.start:
                # The task was complete, but the worker or the master died before the report.
                self._leases.report(*self._open.pop(lease.lease_id))
                return True
            self._streamed = lease
            try:
                self._stream = item.updates(offset)
            except (Exception, SystemExit) as error:
                self._fail(lease, None, error)
        return True

    def after(self, update: Update, *, counted: bool) -> None:
        """Count all acknowledged updates; if ``counted`` is False, train ``update`` again."""
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
            self._status.stepped(self._status.steps + update.count)
            for loss in update.losses:
                if math.isfinite(loss):
                    self._status.note({"loss": loss})
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
            # The end of an earlier pass, which the script has left already, is ignored.
            self._pass_over = item.epochs >= self._leases.epochs
        elif self._one_off is not None and not _is_training(item):
            self._one_off.do(item)
        elif isinstance(item, TaskFailed):
            raise item.error

    def has_last_model(self, dismissed: DismissedError | None) -> bool:
        """Return True: the master decides whether this process has a model to write."""
        return True

    def close(self) -> None:
        """Stop leasing and reporting tasks."""
        self._tasks.stop()
        self._leases.close()

    # ---- servers ----

    def connect(self) -> None:
        """Connect the engine to the current servers, unless it is connected.

        The first connection calls ``on_train_begin``.

        Raises:
            ServersLostError: the servers do not answer.
        """
        if not self._connected:
            self._engine.connect(self._session.cluster)
            self._connected = True
        if not self._begun:
            self._begun = True
            self._call_back("on_train_begin", self._engine.model)

    def lose_servers(self, error: ServersLostError) -> None:
        """Return all unfinished tasks to the master, and wait for new servers for at most 2 s."""
        log.log(servers_lost_level(error), "parameter servers lost: %s", error)
        self._status.phase = "reconnecting"
        self._tasks.give_up()
        self._give_back(self._forget())
        deadline = time.monotonic() + _RETRY_SERVERS_S
        while time.monotonic() < deadline and not self._leaving():
            # The deferred item comes first, since it may name the new servers.
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
        """Disconnect from the servers; the next :meth:`connect` may connect to other servers."""
        self._engine.close()
        self._connected = False

    def _forget(self) -> list[tuple[HeldLease, TaskResult]]:
        """Disconnect, drop all unacknowledged updates, and return the unfinished tasks."""
        self.disconnect()
        return self._let_go()

    def _let_go(self) -> list[tuple[HeldLease, TaskResult]]:
        """Empty the pipeline and return the unfinished tasks."""
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
        """Report a task as failed, and return the other tasks in the pipeline to the master."""
        if self._leaving():
            # A reader or connection that a signal broke is not a failure of the task.
            log.info("while leaving: %s", error)
            self._leave()
        if self._one_off is None or isinstance(error, MasterLostError | ServersLostError):
            raise error
        try:
            # Earlier updates are valid, so they are committed before the failure is reported.
            self._count(self._engine.acknowledged(wait=True))
        except EdlError as lost:
            log.warning("the updates before the failure: %s", lost)
        _, done = self._open.get(lease.lease_id, (lease, TaskResult(offset=lease.offset)))
        others = [held for held in self._forget() if held[0].lease_id != lease.lease_id]
        where = failed_records(update, error, self._one_off.most_named)
        self._one_off.fail(lease, error, where=where, done=done)
        self._give_back(others)

    # ---- leaving ----

    def leave(self) -> bool:
        """Count the trained updates, and return unfinished tasks to the master for other workers.
        Return True if the current update counts."""
        counted = self._engine.settle()
        # The job may be closed, and its master gone.
        with contextlib.suppress(MasterLostError, ValueError):
            self._count_last()
            self._give_back(self._let_go())
            self._tasks.give_up()
        return counted

    def _leaving(self) -> bool:
        return self._heartbeat.draining.is_set() or self._heartbeat.lost.is_set()

    def _leave(self) -> NoReturn:
        """Commit the trained updates, return all other tasks to the master, and leave.

        Raises:
            DismissedError: always.
        """
        self._status.phase = "draining"
        self._count_last()
        held = self._forget()
        if not self._heartbeat.lost.is_set():
            # A lost master notices the end of this process, or its missing heartbeats, later.
            with contextlib.suppress(MasterLostError):
                self._give_back(held)
                self._tasks.give_up()
        raise DismissedError("the job continues without this worker, or is over")

    def _count_last(self) -> None:
        """Wait for the push in progress and count its updates. If the push is lost, its records
        remain uncounted and are returned with their tasks."""
        try:
            self._count(self._engine.acknowledged(wait=True))
        except EdlError as error:
            log.warning("the last push is lost: %s", error)


def servers_lost_level(error: ServersLostError) -> int:
    """Return the log level for lost servers: INFO if the master has replaced the servers and logged
    the reason, otherwise WARNING."""
    return logging.INFO if isinstance(error, ServersReplacedError) else logging.WARNING


def _is_training(item: Item) -> TypeGuard[RecordTask]:
    return isinstance(item, RecordTask) and item.lease.kind == pb.TASK_TRAIN
