"""How the workers of a job are started and ended: by the master itself, or by torchrun. Pure.

A workforce decides nothing about tasks or the model: it returns events, which the job applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from master.state.actions import Failure, Progress
from master.state.ring import Ring
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import DRAINING, EXITED, PENDING, STOPPING, OfAll
from master.state.workforce.waiting import Census, Waiting
from torch_edl.config.job import check_workers
from torch_edl.events import Event, WorkersMissing
from torch_edl.processes.launcher import (
    ProcessExit,
    ProcessRefused,
    ProcessRuns,
    ProcessWaits,
)
from torch_edl.wire import master_pb2 as pb

_LEAVE_S = 10.0


@dataclass(frozen=True)
class WorkerGone:
    """A worker no longer takes part."""

    worker: int
    why: str
    """Reason, as shown to the user."""
    declared: bool = False
    """True if the worker hangs or does not answer; its process is killed."""


@dataclass(frozen=True)
class WorkerReturned:
    """A worker that has left takes part again: its script begins another training, or another
    process runs in its place."""

    worker: int


@dataclass(frozen=True)
class Finished:
    """The job is finished."""

    leave_s: float
    """Seconds that the workers have to leave."""


@dataclass(frozen=True)
class StopRequested:
    """The job is to stop."""

    reason: str


WorkforceEvent = WorkerGone | WorkerReturned | Finished | StopRequested | Event | Failure


class Workforce:
    """The workers of a job that the master starts; the fleet replaces lost ones.

    :class:`~master.state.scripts.script_workforce.ScriptWorkforce` differs for scripts.

    Args:
        ring: ring that the workers form.
        min_workers: number of running workers below which the user is warned; 0: no warning.
    """

    def __init__(self, fleet: Fleet, ring: Ring, *, min_workers: int = 0) -> None:
        self._fleet = fleet
        self._ring = ring
        self._min_workers = min_workers
        self._waiting = Waiting(min_workers=min_workers)
        self._census = OfAll(fleet, lambda: Census.of(fleet.launched()))

    @property
    def closed(self) -> bool:
        """True if no worker may join, although the job has no outcome yet."""
        return False

    @property
    def awaits_outcome(self) -> bool:
        """True if the process that started the master will ask for the outcome."""
        return True

    def register(self, request: pb.RegisterRequest) -> tuple[int, Sequence[WorkforceEvent]]:
        """Return the id of a worker that registers, and the events that follow. Raises UsageError
        if the job accepts no more workers."""
        return request.worker_id, ()

    def progress(self, event: Progress, now: float) -> Iterable[WorkforceEvent]:
        """Record the scheduling state of a process that the master requested."""
        process = self._fleet.process(event.role, event.id)
        if process is None or process.state == EXITED:
            return ()  # the message arrived after its end
        match event:
            case ProcessWaits():
                process.wait(event, now)
            case ProcessRuns():
                self._fleet.runs(process, event, now)
            case ProcessRefused():
                return [Failure(f"{process.name} will never run: {event.why}", usage=True)]
        return ()

    def ended(self, exit: ProcessExit, now: float) -> Iterable[WorkforceEvent]:
        """Handle the exit of a process that the master started, before it is marked as exited."""
        process = self._fleet.process(exit.role, exit.id)
        asked = process is None or process.state in (DRAINING, STOPPING)
        if asked or not exit.blames_node:
            return ()
        return self._fleet.starts.machines.lost(exit.node, str(exit), now)

    def left(self, exit: ProcessExit) -> Iterable[WorkforceEvent]:
        """Handle an unexpected exit, after the process is marked as exited."""
        run = sum(process.state != PENDING for process in self._fleet.alive("worker"))
        # A user may scale below the minimum.
        least = min(self._min_workers, self._fleet.workers_wanted)
        if exit.role != "worker" or run >= least:
            return ()
        return [WorkersMissing(running=run, minimum=least)]

    def declare_lost(self, worker: int, why: str) -> None:
        """Kill the process of a worker that hangs or does not answer."""
        self._fleet.lost(worker)

    def leave_ring(self, worker: int, now: float, *, finished: bool, ends: bool) -> bool:
        """Remove a worker from the ring for good. Returns whether the job is to forget the worker.

        Args:
            finished: the worker reports the end of its script.
            ends: the worker was not asked to leave.
        """
        self._ring.leave(worker, now)
        return False  # the exit of its process follows

    def scale(self, request: pb.ScaleRequest) -> None:
        """Set the number of workers to keep; UsageError if it is not possible."""
        check_workers(request.min_workers, request.max_workers, strategy=self._fleet.strategy)
        self._fleet.workers_wanted = request.max_workers

    def tick(self, now: float, *, newest: str) -> Iterable[WorkforceEvent]:
        """Return the events that are due. ``newest`` is the path of the newest checkpoint, if
        any."""
        return self._waiting.tick(self._census(), now)

    def scripts_over(self, now: float) -> bool:
        """Return whether the workers ended by themselves."""
        return False

    def conclusion(
        self, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        """Return how the job ends now; None if it continues.

        Args:
            work_open: there is work that is not over.
            work_over: everything is trained, evaluated, saved and written.
        """
        return Finished(leave_s=_LEAVE_S) if work_over else None

    def has_heard(self, now: float) -> bool:
        """Return whether no process still has to learn how the job ended."""
        return True

    def to_state(self) -> dict[str, Any]:
        return {}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        return
