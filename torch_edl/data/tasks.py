"""The tasks of a worker, one after the other: leased, and their records prepared."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch_edl.data.feeder import Updates
from torch_edl.data.leases_ahead import (
    LeasesAhead,
    MasterLost,
    NoMoreTasks,
    PassOver,
    ServersChanged,
)
from torch_edl.data.mode import MODES
from torch_edl.master_client.leases import HeldLease, LeaseClient


@dataclass(frozen=True)
class RecordTask:
    """A task whose records are read: training, evaluation and prediction tasks."""

    lease: HeldLease
    updates: Updates
    incarnation: int
    """Incarnation of the servers at which the task was leased."""


@dataclass(frozen=True)
class ModelTask:
    """A task without records: summarize, snapshot."""

    lease: HeldLease


@dataclass(frozen=True)
class TaskFailed:
    """The records of a task could not be prepared; or, without a lease, the master is lost."""

    error: Exception
    lease: HeldLease | None


Item = RecordTask | ModelTask | ServersChanged | NoMoreTasks | PassOver | TaskFailed
Prepare = Callable[[HeldLease], Updates]
"""Reads the records of a task."""


class Tasks(Protocol):
    """Where a training loop gets its tasks from."""

    def poll(self) -> Item | None:
        """The next item, if it is there without waiting."""
        ...

    def get(self, timeout_s: float) -> Item | None:
        """The next item; None if there is none within about that time."""
        ...

    def give_up(self) -> None:
        """Returns the tasks that were leased ahead and not begun, until more are asked for.

        Raises:
            MasterLostError: the master does not answer.
        """
        ...

    def stop(self) -> None:
        """Leases no more."""
        ...


class LeasedTasks:
    """Prepares a task when it is asked for, and not before; tasks are leased ahead."""

    def __init__(self, leases: LeaseClient, prepare: Prepare) -> None:
        self._ahead = LeasesAhead(leases)
        self._prepare = prepare

    def poll(self) -> Item | None:
        return self.get(0)

    def get(self, timeout_s: float) -> Item | None:
        answer = self._ahead.take(timeout_s)
        if isinstance(answer, MasterLost):
            return TaskFailed(answer.error, None)
        if answer is None or isinstance(answer, NoMoreTasks | PassOver | ServersChanged):
            return answer
        return self._prepared(answer.lease, answer.incarnation)

    def give_up(self) -> None:
        self._ahead.give_up()

    def stop(self) -> None:
        self._ahead.stop()

    def _prepared(self, lease: HeldLease, incarnation: int) -> Item:
        if lease.kind not in MODES:
            return ModelTask(lease)
        try:
            return RecordTask(lease, self._prepare(lease), incarnation)
        except Exception as error:
            return TaskFailed(error, lease)


_THREAD = "task-prefetcher"
# Seconds that a feed is waited for when its worker leaves; see `is_preparing`.
_PREPARED_S = 2.0
_LOOK_S = 0.2  # so often a thread that waits looks whether it is to end


class TaskPrefetcher:
    """A thread that prepares one task ahead, whatever becomes of the servers."""

    def __init__(self, leases: LeaseClient, prepare: Prepare) -> None:
        self._leased = LeasedTasks(leases, self._prepare_unless_stopped)
        self._prepare = prepare
        self._items: queue.Queue[Item] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._preparing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    def start(self) -> None:
        """Begins to lease."""
        self._thread.start()

    def poll(self) -> Item | None:
        """The next item, if it is prepared."""
        try:
            return self._items.get_nowait()
        except queue.Empty:
            return None

    def get(self, timeout_s: float) -> Item | None:
        """The next item, as soon as it is prepared."""
        try:
            return self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def give_up(self) -> None:
        self._leased.give_up()

    def stop(self) -> None:
        """Ends the thread.

        An interpreter that ends while a thread of it computes in torch aborts the process
        ("terminate called without an active exception"): what is being prepared is waited for.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._leased.stop()
        if self._preparing.acquire(timeout=_PREPARED_S):
            self._preparing.release()

    @staticmethod
    def is_preparing() -> bool:
        """Whether a thread of this process did not end: the interpreter must not end then."""
        return any(thread.name == _THREAD for thread in threading.enumerate())

    def _run(self) -> None:
        item: Item | None = None
        while not self._stop.is_set() and not isinstance(item, NoMoreTasks):
            item = self._leased.get(_LOOK_S)
            if item is not None:
                self._put(item)

    def _put(self, item: Item) -> None:
        while not self._stop.is_set():
            try:
                self._items.put(item, timeout=_LOOK_S)
                return
            except queue.Full:
                continue

    def _prepare_unless_stopped(self, lease: HeldLease) -> Updates:
        with self._preparing:
            if self._stop.is_set():
                raise RuntimeError("nobody takes this task any more")
            return self._prepare(lease)
