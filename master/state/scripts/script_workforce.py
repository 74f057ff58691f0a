"""The workers of a training script, started by the master on its nodes, or by torchrun. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from master.state.actions import Failure, Progress
from master.state.lifecycle import Lifecycle
from master.state.membership import Membership
from master.state.ring import Ring
from master.state.scripts.rounds import Rounds
from master.state.workforce.fleet import Fleet
from master.state.workforce.workforce import (
    Finished,
    StopRequested,
    WorkerGone,
    WorkerReturned,
    Workforce,
    WorkforceEvent,
)
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.events import RoundFormed
from torch_edl.processes.launcher import ProcessExit, ProcessFails
from torch_edl.wire import master_pb2 as pb

# Seconds after which a node of torchrun that is silent is not expected to learn of the end.
_LINGER_S = 5.0
# Seconds that workers have to leave by themselves after the end of the job.
_LEAVE_S = 10.0
# Seconds after which a job without any machine, worker or node fails.
_DESERTED_S = 60.0


class _Lasting:
    """Tracks for how long a condition has held without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, holds: bool, limit_s: float, now: float) -> bool:
        """Return whether the condition held at every call of the last ``limit_s`` seconds."""
        if not holds:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            return now - self._since >= limit_s
        return False


class ScriptWorkforce(Workforce):
    """Workers that run a script from its beginning to its end.

    The fleet starts them on nodes, as those of a model file, and their ids are those of the
    processes. torchrun starts its workers itself, and each of them gets a new id.
    """

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        ring: Ring,
        *,
        members: Membership,
        lifecycle: Lifecycle,
    ) -> None:
        super().__init__(fleet, ring)
        self._on_nodes = fleet.starts_workers
        self.rounds = Rounds()
        self._config = config
        self._members = members
        self._lifecycle = lifecycle
        self.torchrun_error = ""
        """Error of the first torchrun agent that gave up; empty if none did. Others may have
        finished."""
        self._places: dict[tuple[str, int], int] = {}  # of torchrun's workers
        self._next_id = 0
        self._entered: dict[int, tuple[int, int]] = {}
        """Pid and training with which each worker on a node has registered last."""
        self._deserted, self._abandoned, self._waits = _Lasting(), _Lasting(), _Lasting()
        self._unplaced = _Lasting()

    @property
    def closed(self) -> bool:
        return self.rounds.closed

    @property
    def awaits_outcome(self) -> bool:
        return self._on_nodes  # torchrun's agents do not ask

    # ---- workers ----

    def register(self, request: pb.RegisterRequest) -> tuple[int, Sequence[WorkforceEvent]]:
        """Add a worker, in the place of the one before under torchrun. A repeated call returns the
        same id."""
        if self._on_nodes:
            return request.worker_id, self._enter(request)
        if self._lifecycle.ending:
            raise UsageError(f"job {self._config.name} is over: no further worker may join")
        events = []
        place, before = self._place_of(request), self.before(request)
        if before >= 0:
            member = self._members.get(before)
            if member is not None and member.pid == request.pid:
                return before, ()
            why = "left" if member is None else "another worker took its place"
            events.append(self._lost(before, why))
        worker, self._next_id = self._next_id, self._next_id + 1
        self._places[place] = worker
        self._fleet.adopt(worker, request.pid)
        return worker, events

    def _enter(self, request: pb.RegisterRequest) -> Sequence[WorkforceEvent]:
        """Admit a process of a node. It may have left an earlier training, or run in the place of a
        process that has left: a shell script may run several programs."""
        worker, entered = request.worker_id, (request.pid, request.training)
        if self._entered.get(worker) == entered:
            return ()
        if self._lifecycle.ending:
            raise UsageError(f"job {self._config.name} is over: no further worker may join")
        again, self._entered[worker] = worker in self._entered, entered
        if not again:
            return ()
        if worker in self._members:
            # The events are applied before the worker registers.
            return [WorkerGone(worker, "another process took its place"), WorkerReturned(worker)]
        return [WorkerReturned(worker)]

    def before(self, request: pb.RegisterRequest) -> int:
        """Return the last worker in the place of a process that registers; -1 if there was none."""
        if self._on_nodes:
            return request.worker_id
        return self._places.get(self._place_of(request), -1)

    @staticmethod
    def _place_of(request: pb.RegisterRequest) -> tuple[str, int]:
        return request.node or request.host, request.local_rank

    def declare_lost(self, worker: int, why: str) -> None:
        if self._on_nodes:
            super().declare_lost(worker, why)
        else:
            self._fleet.abandon(worker, why)

    def leave_ring(self, worker: int, now: float, *, finished: bool, ends: bool) -> bool:
        if self._on_nodes:
            self._ring.leave(worker, now, finished=finished, ends=ends)
        else:
            # Nobody reports the exit code.
            self._ring.leave(worker, now, finished=finished)
            self._ring.exited(worker, well=True)
        return True  # the process may run on outside the job

    def _lost(self, worker: int, why: str) -> WorkerGone:
        self._fleet.abandon(worker, why)
        return WorkerGone(worker, why)

    def _workers_of(self, node: str) -> list[int]:
        return [id for (name, _), id in self._places.items() if name == node]

    # ---- processes on nodes ----

    def progress(self, event: Progress, now: float) -> Iterable[WorkforceEvent]:
        if isinstance(event, ProcessFails):
            self._fleet.fails(event.id, now)
            return ()
        return super().progress(event, now)

    def ended(self, exit: ProcessExit, now: float) -> Iterator[WorkforceEvent]:
        yield from super().ended(exit, now)
        if exit.role == "worker":
            member = self._members.get(exit.id)
            asked = member is not None and member.draining
            self._ring.exited(exit.id, well=exit.completed and not asked)
            self._entered.pop(exit.id, None)

    def scale(self, request: pb.ScaleRequest) -> None:
        """Set the number of workers to keep; whole machines, if the job may have several."""
        super().scale(request)
        launch = self._config.launch
        if launch is not None and launch.max_nodes > 1:
            machines = -(-request.max_workers // launch.per_node)
            self._fleet.workers_wanted = machines * launch.per_node

    # ---- torchrun ----

    def node_left(self, node: str) -> Sequence[WorkforceEvent]:
        """Remove the workers of an agent of torchrun that has ended them."""
        return [self._lost(worker, "its agent left") for worker in self._workers_of(node)]

    def round_formed(self) -> Sequence[WorkforceEvent]:
        """Declare workers of nodes outside the new round lost; torchrun restarts the others."""
        lost = [
            self._lost(worker, f"{node} is not in the round")
            for (node, _), worker in self._places.items()
            if worker in self._members and node not in self.rounds
        ]
        return [RoundFormed(number=self.rounds.number), *lost]

    # ---- time ----

    def tick(self, now: float, *, newest: str) -> Iterator[WorkforceEvent]:
        yield from super().tick(now, newest=newest)
        if self._lifecycle.outcome is None:
            yield from self._is_abandoned(now, newest)
            yield from self._nothing_begins(now)
        if self._lifecycle.ending:
            self.rounds.closed = True
        elif self.rounds.form(now):
            yield from self.round_formed()

    def _is_abandoned(self, now: float, newest: str) -> Iterator[Failure]:
        """Fail the job if rank 0 was lost at the end, and no worker replaced it in time."""
        # A pod may wait for room for days, and replaces rank 0 then.
        abandoned = self._ring.abandoned and not self._fleet.starts.in_pods
        if self._abandoned.lasts(abandoned, _DESERTED_S, now):
            yield Failure(
                "rank 0 was lost before its script came to its end, and no worker took its "
                f"place for {_DESERTED_S:g} s: what rank 0 saves may be missing"
                + (f"; the newest checkpoint is {newest}" if newest else "")
            )

    def _nothing_begins(self, now: float) -> Iterator[Failure]:
        """Fail the job if workers wait in vain: for machines, or for enough workers to form the
        first ring. Workers that never ask may have a process group of their own."""
        limit_s, waiting = self._config.cluster.join_timeout_s, self._ring.waiting
        workers = self._fleet.alive("worker")
        unplaced = self._on_nodes and bool(workers) and not self._fleet.has_begun
        if self._unplaced.lasts(unplaced, limit_s, now):
            why = workers[0].waits or "no machine has joined"
            yield Failure(
                f"no worker started within {limit_s:g} s (--rdzv-conf join_timeout): {why}"
            )
        if self._waits.lasts(waiting > 0 and not self._ring.number, limit_s, now):
            least = self._config.cluster.min_workers
            yield Failure(
                f"nothing began within {limit_s:g} s (--rdzv-conf join_timeout): "
                f"{waiting} of at least {least} workers came to the loader of the "
                "script, the others ended before it or are still on their way"
            )

    # ---- the end ----

    def scripts_over(self, now: float) -> bool:
        if self._on_nodes:
            return self._fleet.scripts_over
        # Under torchrun, the workers' own reports decide.
        done = self._ring.finished and not len(self._members)
        return done or (self.rounds.closed and self.rounds.deserted(now))

    @property
    def _is_present(self) -> bool:
        """True if a worker takes part, or may still start."""
        if len(self._members):
            return True
        if not self._on_nodes:
            return False
        fleet = self._fleet
        return fleet.starts.in_pods or fleet.present or not fleet.has_begun

    def conclusion(
        self, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        if self.scripts_over(now):
            if work_open:
                return None  # the final checkpoint is still being written
            if self.torchrun_error and not self._ring.finished:
                return Failure(self.torchrun_error)
            ended = self._ring.finished or self._ring.awaits_exits
            if self._ring.number and not ended:
                return Failure("the processes of the script ended before the end of their loop")
            return Finished(leave_s=_LEAVE_S if self._on_nodes else 0.0)
        present = self._is_present
        if self.rounds.left and not present:
            return StopRequested("all agents of torchrun left")
        if self._deserted.lasts(not present and self.rounds.deserted(now), _DESERTED_S, now):
            what = "machine" if self._on_nodes else "agent"
            return Failure(f"no {what} and no worker for {_DESERTED_S:g} s: nobody is left")
        return None

    def has_heard(self, now: float) -> bool:
        outcome = self._lifecycle.outcome
        assert outcome is not None
        if self._on_nodes or outcome.state == "finished":
            return True
        left = not len(self._members) and self.rounds.deserted(now)
        return left or now - self._lifecycle.ended_at >= _LINGER_S

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds.to_state(),
            "places": [[node, rank, id] for (node, rank), id in self._places.items()],
            "next_id": self._next_id,
            "entered": [[worker, *entered] for worker, entered in self._entered.items()],
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.rounds.from_state(state["rounds"], now)
        self._places = {(node, rank): id for node, rank, id in state["places"]}
        self._next_id = state["next_id"]
        self._entered = {worker: (pid, number) for worker, pid, number in state["entered"]}
