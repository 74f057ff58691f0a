"""Processes of a job, their state changes, and the consequences of their exits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from master.state.actions import Failure
from torch_edl.processes.spec import ProcessExit, ProcessRuns, ProcessWaits

PENDING, STARTING, RUNNING, DRAINING, STOPPING, EXITED = (
    "pending",
    "starting",
    "running",
    "draining",
    "stopping",
    "exited",
)


# Seconds until a worker must register: it imports a large framework, maybe on a busy machine.
_REGISTER_S = 180.0
# The same for a spare that takes a worker slot: it has imported everything.
_TAKE_PLACE_S = 10.0
# Seconds without a poll after which a spare is lost. Spares poll every two seconds.
_SILENT_S = 30.0


@dataclass
class Process:
    """One process that the job has or had."""

    role: str
    """``worker``, ``ps`` or ``agent``; a spare has the role ``worker``."""
    id: int
    state: str = STARTING
    """One of the states above, such as :data:`RUNNING`."""
    pid: int = 0
    """Process id; 0 before the start, and for pods."""
    since: int = 0
    """Start time of the process in ticks of the machine; with the pid, it identifies the
    process."""
    address: str = ""
    """Address of a server; empty before the server listens."""
    data_plane: str = ""
    """Address at which a server answers pulls and pushes; empty if it is :attr:`address`."""
    exit: str = ""
    """How the process ended; empty while it runs."""
    started_at: float = 0.0
    """Time at which the process was started, or a spare took a worker slot."""
    stop_by: float | None = None
    """Time at which the process is to be stopped; None if it is to run on."""
    trained: bool = False
    """True if the worker has finished a minibatch or a task."""
    ready: bool = False
    """True if the worker has its model and may lease."""
    heard: bool = False
    """True if the worker has registered."""
    lost: bool = False
    """True if the master terminated the process; its exit does not count as a crash."""
    shard: int = 0
    """Shard of a server; 0 for other processes."""
    incarnation: int = 0
    """Number of a server process, unique in the job; 0 for other processes."""
    heard_at: float | None = None
    """Time of the last heartbeat of a server or spare; None before the first."""
    was_worker: bool = False
    """True for a server that a worker or spare process became."""
    spare: bool = False
    """True for a worker process without a worker slot; see :mod:`master.state.workforce.spares`."""
    was_spare: bool = False
    """True for a worker that was a spare before."""
    problem: str = ""
    """Reason why the server rejects pushes; empty if it accepts them."""
    keeper: int = 0
    """Incarnation of the server that keeps a copy of this server's shard; 0 if none does."""
    leaving: bool = False
    """True for a server that was asked to end and stays until others can do without it."""
    released: bool = False
    """True for a server that was asked to end and may do so now."""
    log: str = ""
    """Log file of a worker that an agent started; empty if there is none."""
    node: str = ""
    """Machine of the process; empty if it is this one, or unknown."""
    waits: str = ""
    """Reason why a pending process does not run; empty if none is known."""
    fix: str = ""
    """Advice to the user about :attr:`waits`."""
    waits_at: float | None = None
    """Time since which :attr:`waits` is set; None if it is empty."""
    unplaced: bool = False
    """True if no machine has room for the process."""
    place: int = -1
    """Place of the process, the lowest that was free; -1 if it has none."""
    pod: int = -1
    """Id of the worker for which the shared pod was made; -1 if the pod is not shared."""
    started_as: str = ""
    """Name of the process when it was started; empty if it is the current name."""

    _roster: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)
    _told: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        own[name], own["_told"] = value, None
        # heard_at changes with every heartbeat, and no cached query depends on it.
        if name != "heard_at" and self._roster is not None:
            self._roster()

    def join(self, roster: Callable[[], None]) -> None:
        """Call ``roster`` after each change of the process from now on."""
        self.__dict__["_roster"] = roster

    @property
    def kind(self) -> str:
        """Role as the user sees it: the role, or ``spare``."""
        return "spare" if self.spare else self.role

    @property
    def name(self) -> str:
        """Name in events, such as ``worker-3`` or ``spare-3``."""
        return f"{self.kind}-{self.id}"

    @property
    def may_be_overdue(self) -> bool:
        """True if :meth:`is_overdue` applies: a starting worker, or a spare."""
        return self.role == "worker" and (self.state == STARTING or self.spare)

    def is_overdue(self, now: float) -> bool:
        """Return whether a starting worker or a spare has been silent for too long. Running workers
        and servers are checked elsewhere."""
        if not self.may_be_overdue:
            return False
        if self.state == STARTING:
            limit_s = _TAKE_PLACE_S if self.was_spare else _REGISTER_S
            return now - self.started_at >= limit_s
        heard_at = self.started_at if self.heard_at is None else self.heard_at
        return self.spare and self.state == RUNNING and now - heard_at >= _SILENT_S

    def register(self) -> bool:
        """Record the registration of a worker. Returns False for a spare, or if it was told to
        end."""
        if self.spare or self.state in (EXITED, STOPPING):
            return False
        if self.state in (PENDING, STARTING):
            self.state = RUNNING
        self.heard = True
        return True

    def retire(self, now: float, *, by: float, starting_too: bool = True) -> None:
        """Make a worker leave; it gets no further task.

        Args:
            by: time at which it is stopped if it has not left.
            starting_too: stop a starting worker now; a pending one is always stopped now.
        """
        if self.state != STOPPING:
            at_once = self.state == PENDING or (self.state == STARTING and starting_too)
            self.state, self.stop_by = DRAINING, now if at_once else by

    def ended(self, exit: ProcessExit, *, over: bool) -> str:
        """Record the exit of the process. Returns its state before.

        Args:
            over: the job is over, so all processes were asked to leave.
        """
        was, self.state, self.exit = self.state, EXITED, str(exit)
        if was == STOPPING and (exit.was_terminated or exit.was_killed or exit.is_unknown):
            self.exit = "stopped"  # otherwise it looks like a SIGTERM from outside
        elif (was == DRAINING or over) and exit.is_unknown:
            self.exit = "left when asked"
        return was

    def become(self, server: Process) -> None:
        """Hand the process of this worker over to a server."""
        self.state, self.exit = EXITED, f"became {server.name}"
        server.state, server.was_worker, server.started_as = STARTING, True, f"worker-{self.id}"
        server.pid, server.since, server.node = self.pid, self.since, self.node
        server.pod = self.pod

    def wait(self, event: ProcessWaits, now: float) -> None:
        """Record that the process is pending, and why."""
        if self.state in (PENDING, STARTING):
            self.state, self.waits, self.fix = PENDING, event.why, event.fix
            self.waits_at = (self.waits_at or now) if event.why else None
            self.unplaced = not event.placed

    def run(self, event: ProcessRuns, now: float) -> None:
        """Record that the process runs; its time to register begins."""
        if self.state == PENDING:
            self.state, self.started_at = STARTING, now
        self.waits, self.fix, self.waits_at = "", "", None
        self.unplaced, self.node = False, event.node

    def end(self) -> None:
        """Mark the process to be killed as soon as possible."""
        if self.state != EXITED:
            self.lost = True
            self.stop_by = 0.0

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values, without fields that have their
        default."""
        own, told = self.__dict__, self._told
        if told is None:
            told = {name: own[name] for name, usual in _UNTOLD.items() if own[name] != usual}
            own["_told"] = told
        return told

    @classmethod
    def from_state(cls, state: Mapping[str, Any], now: float) -> Process:
        """Return the process of :meth:`to_state`. A stop that was scheduled becomes due now, since
        it may not have been carried out."""
        times = {
            name for name, value in state.items() if name.endswith("_at") and value is not None
        }
        process = cls(**{**state, **dict.fromkeys(times, now)})
        if process.stop_by is not None or process.state == STOPPING:
            process.stop_by = now
        if process.state == STOPPING:
            process.state = DRAINING
        return process


# Fields that are left out if they have their default; times are never left out.
_UNTOLD = {
    f.name: MISSING if f.name.endswith("_at") else f.default for f in fields(Process) if f.init
}


def to_end_now(
    processes: Sequence[Process], now: float, *, ends_at: float, hurry: bool
) -> list[Process]:
    """Return the processes to stop now, in a job that is over.

    Args:
        ends_at: time at which workers that have not left are stopped.
        hurry: do not wait for workers before servers are stopped.
    """
    # Workers leave before servers: they may still need them.
    workers_leave = any(p.role == "worker" for p in processes) and not hurry
    return [
        process
        for process in processes
        if process.state != STOPPING
        and (process.role == "worker" or not workers_leave)
        # A worker without a model is stopped at once: it would receive the end only after seconds.
        and (process.role == "ps" or now >= ends_at or not process.ready)
    ]


@dataclass(frozen=True)
class Gone:
    """A process ended, and its tasks or its shard are free; the loss of a server may lose the
    model."""

    text: str
    expected: bool = False
    """True for a worker that was asked to leave."""


# Consecutive crashes without training after which the job fails.
CRASH_LIMIT = 5
# Consecutive SIGKILLs before anything was ever trained, after which the job fails. SIGKILL mostly
# means preemption, but the kernel also sends it when memory is short.
KILL_LIMIT = 30
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0


class Deaths:
    """Counts of process deaths since the last training progress.

    Preempted processes do not count: exits by SIGTERM never do, SIGKILLs only before anything was
    trained.
    """

    def __init__(self) -> None:
        self.start_after = 0.0
        """Time before which no worker is started."""
        self.trained = False
        """True once anything was trained: the job fits into the memory of its machines."""
        self._crashes = 0
        self._kills = 0
        self._servers = 0
        self._refusals = 0

    def forget(self) -> None:
        """Reset the counts: something was trained."""
        self.trained = True
        self._crashes = self._kills = self._servers = self._refusals = 0

    def of_server(self, exit: ProcessExit, text: str, named: str) -> Gone | Failure:
        """Return the consequence of the exit of a server that had a shard.

        Args:
            text: how it ended.
            named: the same, with the path of its log.
        """
        failure = None
        if exit.was_killed:
            failure = self.killed("parameter servers", named)
        elif not (exit.was_taken or exit.was_terminated):
            failure = self.server(named)
        return failure or Gone(text)

    def of_worker(
        self, exit: ProcessExit, text: str, named: str, now: float, *, process: Process
    ) -> Gone | Failure:
        """Return the consequence of the exit of a worker that was not asked to leave.

        Args:
            text: how it ended.
            named: the same, with the path of its log.
        """
        failure = None
        if exit.was_taken:
            if not process.heard:
                self.refused(now)
        elif process.trained:
            pass
        elif exit.was_killed:
            failure = self.killed("workers", named)
        else:
            failure = self.worker(named, now)
        return failure or Gone(text)

    def refused(self, now: float) -> None:
        """Delay the next start: a worker was taken away before it registered, and a machine that
        rejects workers would do so at once, for ever."""
        self._refusals = min(self._refusals + 1, 10)
        pause_s = min(_FIRST_BACKOFF_S * 2**self._refusals, _LONGEST_BACKOFF_S)
        self.start_after = max(self.start_after, now + pause_s)

    def killed(self, role: str, text: str) -> Failure | None:
        """Count a SIGKILL. Returns a Failure if the job is to fail.

        Args:
            role: ``workers`` or ``parameter servers``.
            text: how the process ended.
        """
        if self.trained:
            return None
        self._kills += 1
        if self._kills < KILL_LIMIT:
            return None
        return Failure(
            f"{role} were killed {KILL_LIMIT} times in a row before anything was trained; "
            f"is there enough memory? {text}"
        )

    def worker(self, text: str, now: float) -> Failure | None:
        """Count a crash of a worker that has trained nothing. Returns a Failure if the job is to
        fail."""
        self._crashes += 1
        # The first replacement starts at once: a single death is more likely a preemption.
        if self._crashes > 1:
            self.start_after = now + _FIRST_BACKOFF_S * 2 ** (self._crashes - 2)
        if self._crashes >= CRASH_LIMIT:
            return Failure(
                f"workers died {CRASH_LIMIT} times in a row before anything was trained; {text}"
            )
        return None

    def server(self, text: str) -> Failure | None:
        """Count a crash of a parameter server. Returns a Failure if the job is to fail."""
        self._servers += 1
        if self._servers < CRASH_LIMIT:
            return None
        return Failure(
            f"a parameter server died {CRASH_LIMIT} times in a row before anything was trained; "
            f"{text}"
        )
