"""Who starts and ends the workers of a job: the master itself, or agents and torchrun. Pure.

A workforce decides nothing about tasks or the model: what happens to its workers comes back as
events, which the job applies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from master.state.actions import Failure, Note, Progress
from master.state.ring.ring import Ring
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import DRAINING, EXITED, PENDING, STOPPING
from master.state.workforce.waiting import Census, Waiting
from torch_edl.config.scaling import check_workers
from torch_edl.processes.spec import ProcessExit, ProcessRefused, ProcessRuns, ProcessWaits
from torch_edl.wire import master_pb2 as pb

_LEAVE_S = 10.0


@dataclass(frozen=True)
class WorkerLost:
    """A worker takes part no longer."""

    worker: int
    why: str
    ended_well: bool | None = None
    """Whether its process ended with exit code 0; None: the process may still run."""
    declared: bool = False
    """The worker hangs or does not answer; its process is ended."""


@dataclass(frozen=True)
class RoundFormed:
    """The nodes of torchrun have a new round."""

    number: int


@dataclass(frozen=True)
class Finished:
    """The job is finished."""

    leave_s: float
    """How long its workers have to leave."""


@dataclass(frozen=True)
class StopRequested:
    """The job is to stop."""

    reason: str


WorkforceEvent = WorkerLost | RoundFormed | Finished | StopRequested | Note | Failure


class Workforce(ABC):
    """The workers of a job, as those that start and end them see them.

    What has a default is that of workers which the master starts itself.

    Args:
        ring: that the workers form.
    """

    def __init__(self, fleet: Fleet, ring: Ring) -> None:
        self._fleet = fleet
        self._ring = ring

    @property
    def closed(self) -> bool:
        """No worker may join any more, though the job has no outcome yet."""
        return False

    @property
    def awaits_outcome(self) -> bool:
        """Who started the master asks the master how the job ended."""
        return True

    def register(self, request: pb.RegisterRequest) -> tuple[int, Sequence[WorkforceEvent]]:
        """The number of a worker that registers, and what that means for others.

        Raises:
            UsageError: no worker is wanted any more.
        """
        return request.worker_id, ()

    def progress(self, event: Progress, now: float) -> Iterable[WorkforceEvent]:
        """A process that the master has asked for has come so far."""
        process = self._fleet.process(event.role, event.id)
        if process is None or process.state == EXITED:
            return ()  # the message crossed with one that ended it
        match event:
            case ProcessWaits():
                process.wait(event, now)
            case ProcessRuns():
                process.run(event, now)
            case ProcessRefused():
                return [Failure(f"{process.name} will never run: {event.why}", usage=True)]
        return ()

    def ended(self, exit: ProcessExit, now: float) -> Iterable[WorkforceEvent]:
        """A process that the master has started is about to be taken for ended."""
        process = self._fleet.process(exit.role, exit.id)
        asked = process is None or process.state in (DRAINING, STOPPING)
        if asked or not exit.blames_node:
            return ()
        return self._fleet.machines.lost(exit.node, str(exit), now)

    def left(self, exit: ProcessExit) -> Iterable[WorkforceEvent]:
        """A process that the master has started has ended, and was not to."""
        return ()

    @abstractmethod
    def declare_lost(self, worker: int, why: str) -> None:
        """A worker hangs or does not answer: its process is to be ended."""

    @abstractmethod
    def leave_ring(self, worker: int, now: float, *, finished: bool, ends: bool) -> bool:
        """A worker will join no other ring; returns whether the job is to forget the worker.

        Args:
            finished: the worker says that its script is over.
            ends: the worker was not asked to leave.
        """

    def scale(self, request: pb.ScaleRequest) -> None:
        """Keep another number of workers from now on.

        Raises:
            UsageError: the number is not possible.
        """
        check_workers(request.min_workers, request.max_workers, strategy=self._fleet.strategy)
        self._fleet.workers_wanted = request.max_workers

    def tick(self, now: float, *, newest: str) -> Iterable[WorkforceEvent]:
        """Time passes.

        Args:
            newest: the newest checkpoint; empty: there is none.
        """
        return ()

    def scripts_over(self, now: float) -> bool:
        """The workers have come to their end by themselves."""
        return False

    @abstractmethod
    def conclusion(
        self, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        """How the job ends now; None: it continues.

        Args:
            work_open: there is work that is not over.
            work_over: everything is trained, evaluated, saved and written.
        """

    def has_heard(self, now: float) -> bool:
        """No process waits any more to hear how the job ended."""
        return True

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it."""
        return {}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """The inverse of :meth:`to_state`."""
        return


class LaunchedWorkforce(Workforce):
    """Workers that the master starts: the fleet replaces those that are lost.

    Args:
        min_workers: with fewer that run, the user is told so.
    """

    def __init__(self, fleet: Fleet, ring: Ring, *, min_workers: int) -> None:
        super().__init__(fleet, ring)
        self._min_workers = min_workers
        self._waiting = Waiting(min_workers=min_workers)
        self._census = fleet.of_all(lambda: Census.of(fleet.alive()))

    def left(self, exit: ProcessExit) -> Iterable[WorkforceEvent]:
        run = sum(process.state != PENDING for process in self._fleet.alive("worker"))
        # A user who asks for fewer has them.
        least = min(self._min_workers, self._fleet.workers_wanted)
        if exit.role != "worker" or run >= least:
            return ()
        text = f"workers left: {run}, minimum: {least}; waiting for replacements"
        return [Note("warning", text)]

    def tick(self, now: float, *, newest: str) -> Iterable[WorkforceEvent]:
        return self._waiting.tick(self._census(), now)

    def declare_lost(self, worker: int, why: str) -> None:
        self._fleet.lost(worker)

    def leave_ring(self, worker: int, now: float, *, finished: bool, ends: bool) -> bool:
        self._ring.leave(worker, now)
        return False  # the exit of its process follows

    def conclusion(
        self, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        return Finished(leave_s=_LEAVE_S) if work_over else None
