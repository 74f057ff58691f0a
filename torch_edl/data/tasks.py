"""The leased tasks of a worker, with prepared records."""

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
    """A task with records: training, evaluation or prediction."""

    lease: HeldLease
    updates: Updates
    """Function from an offset in the task to the updates from there on."""
    incarnation: int
    """Incarnation of the servers when the task was leased."""


@dataclass(frozen=True)
class ModelTask:
    """A task without records: a summary or a snapshot."""

    lease: HeldLease


@dataclass(frozen=True)
class TaskFailed:
    """The records of a task could not be prepared, or the master is lost."""

    error: Exception
    lease: HeldLease | None
    """Lease of the task; None: the master is lost."""


Item = RecordTask | ModelTask | ServersChanged | NoMoreTasks | PassOver | TaskFailed
Prepare = Callable[[HeldLease], Updates]
"""Function that reads the records of a task and returns its updates."""


class Tasks(Protocol):
    """The tasks of a training loop."""

    def poll(self) -> Item | None:
        """Return the next item without waiting; None if no item is ready."""
        ...

    def get(self, timeout_s: float) -> Item | None:
        """Return the next item; None after about ``timeout_s`` seconds without one."""
        ...

    def give_up(self) -> None:
        """Return all tasks that were leased in advance to the master, and lease none until the next
        item is requested.

        Raises:
            MasterLostError: the master does not answer.
        """
        ...

    def stop(self) -> None:
        """Stop leasing tasks."""
        ...


class LeasedTasks:
    """Tasks that are leased in advance, and prepared in the thread that requests them."""

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
# Seconds to wait for a running feed when the worker leaves; see `is_preparing`.
_PREPARED_S = 2.0
_LOOK_S = 0.2  # seconds between two checks of the stop event


class TaskPrefetcher:
    """A thread that prepares one task in advance, also while the servers are lost."""

    def __init__(self, leases: LeaseClient, prepare: Prepare) -> None:
        self._leased = LeasedTasks(leases, self._prepare_unless_stopped)
        self._prepare = prepare
        self._items: queue.Queue[Item] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._preparing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread, which leases and prepares tasks."""
        self._thread.start()

    def poll(self) -> Item | None:
        """Return the next item if it is prepared; None otherwise."""
        try:
            return self._items.get_nowait()
        except queue.Empty:
            return None

    def get(self, timeout_s: float) -> Item | None:
        """Return the next item as soon as it is prepared; None after ``timeout_s`` seconds."""
        try:
            return self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def give_up(self) -> None:
        self._leased.give_up()

    def stop(self) -> None:
        """End the thread, and wait for at most 2 s until a task in preparation is prepared.

        An interpreter that exits while one of its threads computes in torch aborts the process
        ("terminate called without an active exception").
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._leased.stop()
        if self._preparing.acquire(timeout=_PREPARED_S):
            self._preparing.release()

    @staticmethod
    def is_preparing() -> bool:
        """Return True if a thread of this process is still preparing a task, so that the
        interpreter must not exit."""
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
