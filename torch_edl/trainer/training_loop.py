"""The loop of a worker: windows of training tasks in a pipeline, everything else one at a time.

The loader prepares tasks; the loop hands their windows to the strategy, as far ahead as it looks,
and reports a task once its last window is committed. Whatever goes wrong ends in one of three
ways: the servers are lost (what is not committed is given back and done again), the user's code
failed (the task is reported with the records that were at work), or the worker leaves.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch_edl.contract import user_traceback
from torch_edl.data.loader import (
    MODES,
    Bare,
    Broken,
    Changed,
    Ended,
    FeedError,
    Item,
    Loader,
    Prepared,
    Window,
)
from torch_edl.engine.base import Committed, NanLossError, Strategy, UserCodeError
from torch_edl.errors import EdlError, MasterLostError, ServersLostError, UsageError, describe_error
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.master_client.leases import LeaseClient, TaskResult
from torch_edl.trainer.session import Session
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# How long to wait for a word of the master about servers that do not answer, before trying them
# again: a server that is dead is noticed and replaced in less.
_RETRY_SERVERS_S = 2.0


class _TaskError(EdlError):
    """What went wrong with one task; the exception is the cause."""

    def __init__(self, lease: pb.LeaseMessage, window: Window | None) -> None:
        super().__init__(f"task {lease.task_id}")
        self.lease = lease
        self.window = window


@contextmanager
def _blaming(lease: pb.LeaseMessage, window: Window | None = None) -> Iterator[None]:
    try:
        yield
    except (ServersLostError, MasterLostError):
        raise
    except (Exception, SystemExit) as error:
        raise _TaskError(lease, window) from error


@dataclass
class _OpenTask:
    """A training task of which windows are prefetched, trained or on their way."""

    lease: pb.LeaseMessage
    records: int = 0
    steps: int = 0
    nan_steps: int = 0
    damaged: int = 0

    def result(self) -> TaskResult:
        """What was committed of the task."""
        return TaskResult(
            records=self.records,
            steps=self.steps,
            nan_steps=self.nan_steps,
            damaged=self.damaged,
        )


class TrainingLoop:
    """Takes items from the loader and does them.

    Args:
        session: the user's model.
        strategy: what trains it.
        cluster: the servers to begin with.
    """

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        leases: LeaseClient,
        heartbeat: Heartbeat,
        progress: WorkerStatus,
        cluster: pb.Cluster,
    ) -> None:
        self._session = session
        self._strategy = session.strategy = strategy
        self._leases = leases
        self._heartbeat = heartbeat
        self._progress = progress
        self._cluster = cluster
        self._connected = self._begun = False
        self._loader = Loader(leases, session.feeder)
        self._open: dict[int, _OpenTask] = {}
        self._stream: Iterator[Window] | None = None  # of the task whose windows are handed out
        self._stream_lease = pb.LeaseMessage()
        self._upcoming: deque[Window] = deque()  # prefetched, not trained
        self._deferred: Item | None = None  # waits until the pipeline is empty

    def run(self) -> int:
        """Until the end; the exit code of the process."""
        try:
            self._loader.start()
            while not self._leaving():
                try:
                    if not self._advance():
                        break
                except ServersLostError as error:
                    self._lose_servers(error)
                except _TaskError as failure:
                    self._fail(failure)
            else:
                self._leave()
            self._do_last_errands()
            self._session.call_back("on_train_end", self._strategy.model)
        finally:
            self._loader.stop()
            self._strategy.close()
        return 0

    # ---- the pipeline ----

    def _advance(self) -> bool:
        """Trains one window, or does one other item; False at the end of the job."""
        if not self._connected:
            self._connect()
        self._fill()
        if self._upcoming:
            self._train(self._upcoming.popleft())
            return True
        self._commit(self._strategy.finish())
        item, self._deferred = self._deferred, None
        if item is None:
            item = self._loader.poll()
        if item is None:
            self._progress.phase = "waiting"
            item = self._loader.get(timeout_s=0.2)
        if isinstance(item, Ended):
            return False
        if item is not None and not self._open_stream(item):
            self._do(item)
        return True

    def _fill(self) -> None:
        """Prefetches windows of this task and the next, as far as the strategy looks ahead."""
        while len(self._upcoming) < 1 + self._strategy.depth and self._deferred is None:
            if self._stream is None:
                item = self._loader.poll()
                if item is None:
                    return
                if not self._open_stream(item):
                    self._deferred = item
                continue
            lease = self._stream_lease
            with _blaming(lease):
                window = next(self._stream, None)
            if window is None:
                self._stream = None
                continue
            with _blaming(lease, window):
                self._strategy.prefetch(window)
            self._upcoming.append(window)

    def _open_stream(self, item: Item) -> bool:
        """Takes a training task in hand; False if the item is something else."""
        if not isinstance(item, Prepared) or item.lease.kind != pb.TASK_TRAIN:
            return False
        # A task that was prepared in an earlier life of the servers is void.
        if item.incarnation == self._leases.incarnation:
            lease = item.lease
            # Before the servers are asked: if they are lost, it is given back with the others.
            self._open[lease.lease_id] = _OpenTask(lease)
            offset = lease.offset
            if lease.retried:
                offset = max(offset, self._strategy.committed(lease))
            if offset >= lease.end - lease.start:
                # Who had it before did it all, and was gone before it could say so.
                self._report_done(self._open.pop(lease.lease_id))
                return True
            with _blaming(lease):
                self._stream, self._stream_lease = item.windows(offset), lease
        return True

    def _train(self, window: Window) -> None:
        self._progress.phase = "training"
        with _blaming(window.lease, window):
            done = self._strategy.train(window, self._leases.retired_before)
        self._commit(done)

    def _commit(self, done: Sequence[Committed]) -> None:
        for committed in done:
            window = committed.window
            task = self._open[window.lease.lease_id]
            records = window.last - window.first
            task.records += records
            task.steps += committed.steps
            task.nan_steps += committed.nan_steps
            task.damaged += window.damaged
            self._progress.records += records
            self._progress.steps += committed.steps
            self._session.call_back("on_batch_end", self._progress.steps, committed.loss)
            if window.ends_task:
                self._report_done(self._open.pop(window.lease.lease_id))
                self._session.call_back("on_task_end", window.lease.task_id)

    def _report_done(self, task: _OpenTask) -> None:
        self._leases.complete(task.lease, task.result())

    # ---- everything but training ----

    def _do(self, item: Item) -> None:
        if isinstance(item, Changed):
            self._drop()
            self._cluster = item.cluster
            self._connect()
        elif isinstance(item, Broken):
            if item.lease is None:
                raise item.error
            with _blaming(item.lease):
                raise item.error
        elif isinstance(item, Prepared | Bare):
            self._progress.phase = pb.TaskKind.Name(item.lease.kind).removeprefix("TASK_").lower()
            try:
                with _blaming(item.lease):
                    result = self._session.do(item)
            except ServersLostError:
                self._leases.release([item.lease])
                raise
            self._leases.complete(item.lease, result)

    def _connect(self) -> None:
        self._strategy.connect(self._cluster)
        self._connected = True
        if not self._begun:
            self._begun = True
            self._session.call_back("on_train_begin", self._strategy.model)

    def _lose_servers(self, error: ServersLostError) -> None:
        """Gives back what is not committed, and waits a while for word of other servers."""
        log.warning("parameter servers lost: %s", error)
        self._progress.phase = "reconnecting"
        self._leases.release(self._drop())
        deadline = time.monotonic() + _RETRY_SERVERS_S
        while time.monotonic() < deadline and not self._leaving():
            # What waited for the pipeline to be empty comes first: it may be that word.
            item, self._deferred = self._deferred, None
            item = item or self._loader.get(timeout_s=0.1)
            if isinstance(item, Changed):
                self._cluster = item.cluster
                return
            if isinstance(item, Ended):
                self._deferred = item
                return
            if isinstance(item, Prepared | Bare):
                self._leases.release([item.lease])
            elif isinstance(item, Broken):
                try:
                    self._do(item)
                except _TaskError as failure:
                    self._fail(failure)

    def _drop(self) -> list[pb.LeaseMessage]:
        """Forgets everything that is not committed; returns the tasks that were in hand."""
        self._strategy.close()
        self._connected = False
        self._upcoming.clear()
        self._stream = None
        held = [task.lease for task in self._open.values()]
        self._open.clear()
        return held

    def _fail(self, failure: _TaskError) -> None:
        """Reports a task as failed, and gives back the others that are in the pipeline."""
        error, lease, window = failure.__cause__, failure.lease, failure.window
        assert error is not None
        log.error("task %d of %s failed: %s", lease.task_id, lease.shard, error)
        if isinstance(error, FeedError):
            window = None
        try:
            # What was trained before is not at fault: let it become part of the model.
            self._commit(self._strategy.finish())
        except EdlError as lost:
            log.warning("the windows before the failure: %s", lost)
        task = self._open.get(lease.lease_id, _OpenTask(lease))
        others = [held for held in self._drop() if held.lease_id != lease.lease_id]
        first = lease.start + (window.first if window else 0)
        last = lease.start + (window.last if window else lease.end - lease.start)
        # What will not be otherwise at the next try; an exception of the user's code may be.
        fatal = isinstance(error, UsageError | NanLossError) or (
            isinstance(error, FeedError | UserCodeError) and error.__cause__ is None
        )
        text = str(error) if isinstance(error, EdlError) else describe_error(error)
        if lease.kind in MODES:
            text += f" (records {first} to {last - 1} of {lease.shard})"
        traceback = user_traceback(error, self._session.contract.path)
        self._leases.fail(lease, text, traceback, fatal=fatal, done=task.result())
        self._leases.release(others)

    # ---- leaving ----

    def _do_last_errands(self) -> None:
        """Writes the model, if the job is to end and nobody else has it."""
        if self._heartbeat.lost.is_set():
            return
        self._loader.stop()
        for lease in self._leases.last_errands():
            try:
                self._do(Bare(lease))
            except _TaskError as failure:
                self._fail(failure)

    def _leaving(self) -> bool:
        return self._heartbeat.draining.is_set() or self._heartbeat.lost.is_set()

    def _leave(self) -> None:
        """Told to go: what is trained becomes part of the model, the rest is given back."""
        self._progress.phase = "draining"
        try:
            self._commit(self._strategy.finish())
        except EdlError as error:
            log.warning("the last push is lost: %s", error)
        held = self._drop()
        if not self._heartbeat.lost.is_set():
            self._leases.release(held)
