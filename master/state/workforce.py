"""Who starts and ends the workers of a job: the master itself, or agents and torchrun. Pure.

A workforce decides nothing about tasks or the model: what happens to its workers comes back as
events, which the job applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from master.state.actions import Failure, Note
from master.state.fleet import Fleet
from master.state.lifecycle import Lifecycle, Part
from master.state.processes import check_scale
from master.state.ring import Ring
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


class Workforce(Part, Protocol):
    """The workers of a job, as those that start and end them see them."""

    survives_master: bool
    """The workers go on while a master that was killed is started again."""

    @property
    def closed(self) -> bool:
        """No worker may join any more, though the job has no outcome yet."""
        ...

    @property
    def awaits_outcome(self) -> bool:
        """Who started the master asks the master how the job ended."""
        ...

    def register(
        self, request: pb.RegisterRequest, *, ending: bool
    ) -> tuple[int, Sequence[WorkforceEvent]]:
        """The number of a worker that registers, and what that means for others.

        Raises:
            UsageError: no worker is wanted any more.
        """
        ...

    def declare_lost(self, worker: int, why: str) -> None:
        """A worker hangs or does not answer: its process is to be ended."""
        ...

    def leave_ring(
        self, ring: Ring, worker: int, now: float, *, finished: bool, ends: bool
    ) -> bool:
        """A worker will join no other ring; returns whether the job is to forget the worker.

        Args:
            finished: the worker says that its script is over.
            ends: the worker was not asked to leave.
        """
        ...

    def scale(self, request: pb.ScaleRequest) -> None:
        """Keep another number of workers from now on.

        Raises:
            UsageError: the number is not possible.
        """
        ...

    def tick(
        self, ring: Ring, lifecycle: Lifecycle, now: float, *, newest: str
    ) -> Sequence[WorkforceEvent]:
        """Time passes.

        Args:
            newest: the newest checkpoint; empty: there is none.
        """
        ...

    def scripts_over(self, ring: Ring, now: float) -> bool:
        """The workers have come to their end by themselves."""
        ...

    def conclusion(
        self, ring: Ring, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        """How the job ends now; None: it goes on.

        Args:
            work_open: there is work that is not over.
            work_over: everything is trained, evaluated, saved and written.
        """
        ...

    def has_heard(self, lifecycle: Lifecycle, now: float) -> bool:
        """No process waits any more to hear how the job ended."""
        ...


class LaunchedWorkforce:
    """Workers that the master starts; implements :class:`Workforce`."""

    survives_master = False
    closed = False
    awaits_outcome = True

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def register(
        self, request: pb.RegisterRequest, *, ending: bool
    ) -> tuple[int, Sequence[WorkforceEvent]]:
        """See :class:`Workforce`."""
        return request.worker_id, ()

    def declare_lost(self, worker: int, why: str) -> None:
        """See :class:`Workforce`; the fleet replaces the worker."""
        self._fleet.lost(worker)

    def leave_ring(
        self, ring: Ring, worker: int, now: float, *, finished: bool, ends: bool
    ) -> bool:
        """See :class:`Workforce`; the exit of the process follows."""
        ring.leave(worker, now)
        return False

    def scale(self, request: pb.ScaleRequest) -> None:
        """See :class:`Workforce`."""
        check_scale(request.min_workers, request.max_workers, strategy=self._fleet.strategy)
        self._fleet.scale(request.max_workers)

    def tick(
        self, ring: Ring, lifecycle: Lifecycle, now: float, *, newest: str
    ) -> Sequence[WorkforceEvent]:
        """See :class:`Workforce`."""
        return ()

    def scripts_over(self, ring: Ring, now: float) -> bool:
        """See :class:`Workforce`; the work decides when these workers end."""
        return False

    def conclusion(
        self, ring: Ring, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        """See :class:`Workforce`."""
        return Finished(leave_s=_LEAVE_S) if work_over else None

    def has_heard(self, lifecycle: Lifecycle, now: float) -> bool:
        """See :class:`Workforce`; the fleet ends the processes."""
        return True

    def to_state(self) -> dict[str, Any]:
        """See :class:`Workforce`."""
        return {}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """See :class:`Workforce`."""
