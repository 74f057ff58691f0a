"""The leased tasks of a worker, leased in advance so that training continues while the master does
not answer.

The number of leased tasks depends on their duration: a worker holds work for about ten seconds,
which is longer than the restart of a master. The master grants fewer tasks when few are left, so
that the last tasks are distributed evenly. When a worker finds none, the others return those that
they have not begun: ten seconds of work of a fast worker are minutes of one that became slow.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass

from torch_edl.data.batch import MODES
from torch_edl.data.feeder import Updates, is_interrupt
from torch_edl.data.sources import release_unused
from torch_edl.master_client.leases import HeldLease, LeaseClient
from torch_edl.wire import master_pb2 as pb

# Seconds of work to lease in advance; a master that died is restarted within one to four seconds.
AHEAD_S = 10.0
# Maximum number of tasks leased in advance; each request lists all leases of the worker.
MAX_AHEAD = 256
# Weight of the newest task in the moving average of task durations.
_NEWEST = 0.3
# Kinds of tasks that follow the order of the data; all other tasks are taken before them.
_IN_ORDER = (pb.TASK_TRAIN, pb.TASK_PREDICT)

_THREAD = "task-prefetcher"
# Seconds to wait for a running feed when the worker leaves; see `is_preparing`.
_PREPARED_S = 2.0
_LOOK_S = 0.2  # seconds between two checks of the stop event


@dataclass(frozen=True)
class ServersChanged:
    """The servers were replaced, or have a new incarnation."""

    cluster: pb.Cluster
    """The current servers."""


@dataclass(frozen=True)
class NoMoreTasks:
    """The master has no more work for this worker."""

    leave: bool
    """True if the job continues without this worker; False if the job is over."""


@dataclass(frozen=True)
class PassOver:
    """All tasks of the first ``epochs`` epochs are done."""

    epochs: int
    """Number of finished epochs."""


@dataclass(frozen=True)
class RecordTask:
    """A task with records: training, evaluation or prediction."""

    lease: HeldLease
    updates: Updates
    """Function from an offset in the task to the updates from there on."""


@dataclass(frozen=True)
class ModelTask:
    """A task without records: a summary or a snapshot."""

    lease: HeldLease


@dataclass(frozen=True)
class TaskFailed:
    """The records of a task could not be prepared, or the master is lost."""

    error: BaseException
    lease: HeldLease | None
    """Lease of the task; None: the master is lost."""


Item = RecordTask | ModelTask | ServersChanged | NoMoreTasks | PassOver | TaskFailed
Prepare = Callable[[HeldLease], Updates]
"""Function that reads the records of a task and returns its updates."""


class TaskDuration:
    """A moving average of the time from taking a task until asking for the next one. Pure."""

    def __init__(self) -> None:
        self._given: float | None = None
        self._mean: float | None = None

    def asked(self, now: float) -> None:
        """Record that the worker asks for its next task at time ``now``, in seconds."""
        if self._given is None:
            return
        took, self._given = now - self._given, None
        self._mean = took if self._mean is None else self._mean + _NEWEST * (took - self._mean)

    def given(self, now: float) -> None:
        """Record that the worker takes a task at time ``now``, in seconds."""
        self._given = now

    def tasks(self, seconds: float) -> int:
        """Return the number of tasks for some seconds of work; 1 until the first task is done."""
        if self._mean is None:
            return 1
        if self._mean * MAX_AHEAD <= seconds:
            return MAX_AHEAD
        return max(1, math.ceil(seconds / self._mean))


class LeasedTasks:
    """Tasks that a thread leases in advance. They are prepared in the thread that takes them."""

    def __init__(
        self, leases: LeaseClient, prepare: Prepare, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leases = leases
        self._prepare = prepare
        self._clock = clock
        self._preparing = threading.Lock()  # held while a task is prepared
        self._changed = threading.Condition()  # guards the attributes below
        self._answers: deque[HeldLease | Item] = deque()
        self._pace = TaskDuration()
        self._sated = (
            False  # the master granted fewer tasks than requested: ask again at the next get
        )
        self._idle = (
            True  # give_up() was called, or the pass is over: lease nothing until the next get
        )
        self._asked_back = False  # another worker waits for the tasks that were not taken
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="leases-ahead", daemon=True)

    def poll(self) -> Item | None:
        """Return the next item without waiting; None if no item is ready."""
        return self.get(0)

    def get(self, timeout_s: float) -> Item | None:
        """Return the next item; None after about ``timeout_s`` seconds without one."""
        with self._changed:
            if self._thread.ident is None and not self._stopped:
                self._thread.start()
            self._pace.asked(self._clock())
            self._idle = self._sated = False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._answers, timeout_s):
                return None
            answer = self._answers.popleft()
            if isinstance(answer, HeldLease):
                self._pace.given(self._clock())
            self._changed.notify_all()
        return self._prepared(answer) if isinstance(answer, HeldLease) else answer

    def _prepared(self, lease: HeldLease) -> Item:
        if lease.kind not in MODES:
            return ModelTask(lease)
        with self._preparing:
            try:
                if self._stopped:
                    raise RuntimeError("the task is no longer wanted")
                return RecordTask(lease, self._prepare(lease))
            except BaseException as error:  # otherwise it would end the thread without a message
                if is_interrupt(error):
                    raise
                return TaskFailed(error, lease)

    def give_up(self) -> None:
        """Return all tasks that were not taken to the master, and lease none until the next
        :meth:`get`.

        Raises:
            MasterLostError: the master does not answer.
        """
        with self._changed:
            self._idle = True
            dropped = self._drop()
        self._leases.decline(dropped)

    def give_back(self) -> None:
        """Let the thread return all tasks that were not taken to the master, and lease no other
        until the next :meth:`get`."""
        with self._changed:
            self._asked_back = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, without waiting for a request in progress."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _drop(self, kinds: Container[int] = tuple(pb.TaskKind.values())) -> list[HeldLease]:
        """Remove and return the leases of these kinds that were not taken."""
        leases = [each for each in self._answers if isinstance(each, HeldLease)]
        dropped = [each for each in leases if each.kind in kinds]
        self._answers = deque(each for each in self._answers if each not in dropped)
        return dropped

    def _run(self) -> None:
        more = True
        while more:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or self._asked_back or self._missing() > 0
                )
                if self._stopped:
                    return
                asked_back, self._asked_back = self._asked_back, False
                returned = self._drop(MODES) if asked_back else []
                self._sated = self._sated or asked_back
                missing, want = self._missing(), int(not self._answers)
            try:
                if asked_back:
                    self._leases.decline(returned)
                    continue
                epochs = self._leases.epochs
                answer = self._leases.request(want, missing - want)
                more = self._answered(answer, missing, epochs)
            except Exception as error:
                self._put(TaskFailed(error, None))

    def _missing(self) -> int:
        leased = sum(isinstance(each, HeldLease) for each in self._answers)
        if self._idle or self._sated or leased < len(self._answers):
            return 0
        return max(0, self._pace.tasks(AHEAD_S) - leased)

    def _answered(self, response: pb.LeaseResponse, missing: int, epochs: int) -> bool:
        """Store an answer of the master; return False if it was the last one."""
        if response.next in (pb.LeaseResponse.FINISHED, pb.LeaseResponse.DRAIN):
            self._put(NoMoreTasks(leave=response.next == pb.LeaseResponse.DRAIN))
            return False
        if response.next == pb.LeaseResponse.CLUSTER_CHANGED:
            self._put(ServersChanged(response.cluster))
            return True
        if response.next == pb.LeaseResponse.PASS_OVER:
            self._put(PassOver(epochs))
            return True
        incarnation = self._leases.incarnation
        leases = [HeldLease.from_proto(message, incarnation) for message in response.leases]
        with self._changed:
            if not self._idle:
                for lease in leases:
                    self._insert(lease)
                self._sated = bool(self._answers) and len(leases) < missing
                self._changed.notify_all()
                return True
        self._leases.decline(leases)  # give_up() was called meanwhile
        return True

    def _insert(self, lease: HeldLease) -> None:
        """Insert a task: tasks in the order of the data at the end, all others before them."""
        place = len(self._answers)
        if lease.kind not in _IN_ORDER:
            kinds = [each.kind for each in self._answers if isinstance(each, HeldLease)]
            place -= sum(kind in _IN_ORDER for kind in kinds)
        self._answers.insert(place, lease)

    def _put(self, answer: ServersChanged | NoMoreTasks | PassOver | TaskFailed) -> None:
        """Append an answer that is not a task. All answers but the loss of the master invalidate
        the tasks that were leased in advance."""
        with self._changed:
            if isinstance(answer, PassOver):
                self._idle = True  # until the next pass
            if not isinstance(answer, TaskFailed):
                self._drop()
            self._answers.append(answer)
            self._changed.notify_all()


class TaskPrefetcher(LeasedTasks):
    """A second thread prepares one task in advance, also while the servers are lost."""

    def __init__(self, leases: LeaseClient, prepare: Prepare) -> None:
        super().__init__(leases, prepare)
        self._items: queue.Queue[Item] = queue.Queue(maxsize=1)
        self._preparer = threading.Thread(target=self._prepare_all, name=_THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread, which leases and prepares tasks."""
        self._preparer.start()

    def get(self, timeout_s: float) -> Item | None:
        try:
            return self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def stop(self) -> None:
        """End the thread, and wait for at most 2 s until a task in preparation is prepared.

        An interpreter that exits while one of its threads computes in torch aborts the process
        ("terminate called without an active exception").
        """
        if self._stopped:
            return
        super().stop()
        if self._preparing.acquire(timeout=_PREPARED_S):
            self._preparing.release()

    @staticmethod
    def is_preparing() -> bool:
        """Return True if a thread of this process is still preparing a task, so that the
        interpreter must not exit."""
        return any(thread.name == _THREAD for thread in threading.enumerate())

    def _prepare_all(self) -> None:
        item: Item | None = None
        while not self._stopped and not isinstance(item, NoMoreTasks):
            item = super().get(_LOOK_S)
            if isinstance(item, RecordTask):
                release_unused()
            while item is not None and not self._stopped:
                with contextlib.suppress(queue.Full):
                    self._items.put(item, timeout=_LOOK_S)
                    break
