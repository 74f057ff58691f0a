"""Tasks leased ahead of need, so that training goes on while no master answers.

How many depends on how long they take: a worker has work for some ten seconds in hand, which is
longer than a master takes to be started again. The master grants less where few tasks are left, so
that the last ones are shared out evenly.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch_edl.master_client.leases import HeldLease, LeaseClient
from torch_edl.wire import master_pb2 as pb

# Seconds of work in hand; a master that died listens again within one to four.
AHEAD_S = 10.0
# Each request names what the worker holds, so there is a limit.
MAX_AHEAD = 256
# Weight of the newest task in the mean of what tasks take.
_NEWEST = 0.3
# These have their place in the order of the data; all other tasks come before them.
_IN_ORDER = (pb.TASK_TRAIN, pb.TASK_PREDICT)


@dataclass(frozen=True)
class Leased:
    """A task, at the incarnation of the model at which it was leased."""

    lease: HeldLease
    incarnation: int


@dataclass(frozen=True)
class ServersChanged:
    """Other servers, or the same ones in another incarnation."""

    cluster: pb.Cluster


@dataclass(frozen=True)
class NoMoreTasks:
    """The master has no more work for this worker."""

    leave: bool
    """The job continues without this worker."""


@dataclass(frozen=True)
class PassOver:
    """All tasks of the first epochs are done."""

    epochs: int


@dataclass(frozen=True)
class MasterLost:
    """The master cannot be asked."""

    error: Exception


Answer = Leased | ServersChanged | NoMoreTasks | PassOver | MasterLost


class TaskDuration:
    """How long a task takes: from being handed out until the next is asked for. Pure."""

    def __init__(self) -> None:
        self._given: float | None = None
        self._mean: float | None = None

    def asked(self, now: float) -> None:
        """The next task is asked for."""
        if self._given is None:
            return
        took, self._given = now - self._given, None
        self._mean = took if self._mean is None else self._mean + _NEWEST * (took - self._mean)

    def given(self, now: float) -> None:
        """A task was handed out."""
        self._given = now

    def tasks(self, seconds: float) -> int:
        """How many tasks last for so long; 1 until the first is done."""
        if self._mean is None:
            return 1
        if self._mean * MAX_AHEAD <= seconds:
            return MAX_AHEAD
        return max(1, math.ceil(seconds / self._mean))


class LeasesAhead:
    """A thread that leases tasks ahead, and what it has leased. One thread takes from it."""

    def __init__(self, leases: LeaseClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._leases = leases
        self._clock = clock
        self._changed = threading.Condition()  # guards all below
        self._answers: deque[Answer] = deque()
        self._pace = TaskDuration()
        self._sated = False  # the master granted less than was asked for
        self._idle = True  # nobody takes
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="leases-ahead", daemon=True)

    def take(self, timeout_s: float) -> Answer | None:
        """The next answer; None if there is none within that time."""
        with self._changed:
            if self._thread.ident is None and not self._stopped:
                self._thread.start()
            self._pace.asked(self._clock())
            self._idle = self._sated = False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._answers, timeout_s):
                return None
            answer = self._answers.popleft()
            if isinstance(answer, Leased):
                self._pace.given(self._clock())
            self._changed.notify_all()
            return answer

    def give_up(self) -> None:
        """Returns the tasks that were not taken, and leases none until the next :meth:`take`.

        Raises:
            MasterLostError: the master does not answer.
        """
        with self._changed:
            self._idle = True
            dropped = self._drop()
        self._leases.decline(dropped)

    def stop(self) -> None:
        """Ends the thread; it may still be waiting for the master, which does no harm."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _drop(self) -> list[HeldLease]:
        dropped = [each.lease for each in self._answers if isinstance(each, Leased)]
        self._answers = deque(each for each in self._answers if not isinstance(each, Leased))
        return dropped

    def _run(self) -> None:
        more = True
        while more:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._missing() > 0)
                if self._stopped:
                    return
                missing, want = self._missing(), int(not self._answers)
            try:
                epochs = self._leases.epochs
                answer = self._leases.lease(want, missing - want)
                more = self._answered(answer, missing, epochs)
            except Exception as error:
                self._put(MasterLost(error))

    def _missing(self) -> int:
        """How many tasks to ask for now."""
        leased = sum(isinstance(each, Leased) for each in self._answers)
        if self._idle or self._sated or leased < len(self._answers):
            return 0
        return max(0, self._pace.tasks(AHEAD_S) - leased)

    def _answered(self, response: pb.LeaseResponse, missing: int, epochs: int) -> bool:
        """Notes what the master answered; False: it will have no more tasks."""
        if response.next in (pb.LeaseResponse.FINISHED, pb.LeaseResponse.DRAIN):
            self._put(NoMoreTasks(leave=response.next == pb.LeaseResponse.DRAIN))
            return False
        if response.next == pb.LeaseResponse.CLUSTER_CHANGED:
            self._put(ServersChanged(response.cluster))
            return True
        if response.next == pb.LeaseResponse.PASS_OVER:
            self._put(PassOver(epochs))
            return True
        leases = [HeldLease.from_proto(message) for message in response.leases]
        with self._changed:
            if not self._idle:
                for lease in leases:
                    self._insert(Leased(lease, self._leases.incarnation))
                self._sated = bool(self._answers) and len(leases) < missing
                self._changed.notify_all()
                return True
        self._leases.decline(leases)  # they were given up before they came
        return True

    def _insert(self, leased: Leased) -> None:
        """Puts a task behind those that are as urgent."""
        place = len(self._answers)
        if leased.lease.kind not in _IN_ORDER:
            kinds = [each.lease.kind for each in self._answers if isinstance(each, Leased)]
            place -= sum(kind in _IN_ORDER for kind in kinds)
        self._answers.insert(place, leased)

    def _put(self, answer: ServersChanged | NoMoreTasks | PassOver | MasterLost) -> None:
        """Adds what is no task; after other servers, or at the end, the tasks leased are void."""
        with self._changed:
            if isinstance(answer, PassOver):
                self._idle = True  # until the next pass
            if not isinstance(answer, MasterLost):
                self._drop()
            self._answers.append(answer)
            self._changed.notify_all()
