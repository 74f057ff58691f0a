"""What a fleet consists of: processes, what is to be done to them, and what their ends mean."""

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


# A worker that imports a large framework on a busy machine registers within this.
_REGISTER_S = 180.0
# A spare has imported everything, and has nothing to do but to register.
_TAKE_PLACE_S = 10.0
# A spare asks for a place every two seconds.
_SILENT_S = 30.0


@dataclass
class Process:
    """One process that the job has or had."""

    role: str
    id: int
    state: str = STARTING
    pid: int = 0
    since: int = 0
    """When the process started, in ticks of the machine: with the pid, it names one process."""
    address: str = ""
    data_plane: str = ""
    """Where a server answers pulls and pushes; empty: where it answers everything."""
    exit: str = ""
    started_at: float = 0.0
    stop_by: float | None = None
    """When a worker that drains is stopped."""
    trained: bool = False
    """A worker that has finished a task or a minibatch."""
    ready: bool = False
    """A worker that has its model and may lease."""
    heard: bool = False
    """A worker that has registered."""
    lost: bool = False
    """Given up by us; its end is no crash of its own."""
    shard: int = 0
    incarnation: int = 0
    """Of a server; no other server of the job has it or had it."""
    heard_at: float | None = None
    """When a server or a spare was heard last; None: not yet."""
    was_worker: bool = False
    """A server that a worker or a spare becomes, in the same process."""
    spare: bool = False
    """A worker process that has no worker's place; see :mod:`master.state.workforce.spares`."""
    was_spare: bool = False
    """A spare that took a worker's place."""
    problem: str = ""
    """What keeps a server from accepting pushes."""
    keeper: int = 0
    """Incarnation of the server that keeps a copy of the shard of this one; 0: none does."""
    leaving: bool = False
    """A server that was asked to end, and serves on until others can do without it."""
    released: bool = False
    """A server that was asked to end, and does so now."""
    log: str = ""
    """A worker that an agent started: the file of its output; empty if it is kept in none."""
    node: str = ""
    """The machine that it runs on; empty: this one, or not known."""
    waits: str = ""
    """What keeps a process that is pending from running; empty: nothing does."""
    fix: str = ""
    """What the user can do about that."""
    waits_at: float | None = None
    """Since when."""
    unplaced: bool = False
    """No machine has room for it."""
    place: int = -1
    """Of a worker that was asked for: the lowest that no other worker had; -1: none."""
    pod: int = -1
    """Of a worker that shares a pod: the id of the worker for which the pod was made; -1: none."""
    started_as: str = ""
    """The name that it had when it was started; empty: its name of today."""

    _roster: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)
    _told: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        own[name], own["_told"] = value, None
        # Told with every heartbeat, and asked for where it counts.
        if name != "heard_at" and self._roster is not None:
            self._roster()

    def join(self, roster: Callable[[], None]) -> None:
        """From now on ``roster`` is called when the process changes."""
        self.__dict__["_roster"] = roster

    @property
    def kind(self) -> str:
        """What the process is for the user: its role, or ``spare``."""
        return "spare" if self.spare else self.role

    @property
    def name(self) -> str:
        """``worker-3``, ``spare-3``: for events."""
        return f"{self.kind}-{self.id}"

    @property
    def may_be_overdue(self) -> bool:
        """Whether :meth:`is_overdue` can say so, as it is now."""
        return self.role == "worker" and (self.state == STARTING or self.spare)

    def is_overdue(self, now: float) -> bool:
        """Whether it should have been heard long ago: a worker process that starts, or a spare.
        Workers that run and servers are watched elsewhere."""
        if not self.may_be_overdue:
            return False
        if self.state == STARTING:
            limit_s = _TAKE_PLACE_S if self.was_spare else _REGISTER_S
            return now - self.started_at >= limit_s
        heard_at = self.started_at if self.heard_at is None else self.heard_at
        return self.spare and self.state == RUNNING and now - heard_at >= _SILENT_S

    def register(self) -> bool:
        """A worker registers; False if it is none, or was told to end."""
        if self.spare or self.state in (EXITED, STOPPING):
            return False
        if self.state in (PENDING, STARTING):
            self.state = RUNNING
        self.heard = True
        return True

    def retire(self, now: float, *, by: float, starting_too: bool = True) -> None:
        """A worker is to leave, and gets no other task.

        Args:
            by: when it is stopped if it has not left.
            starting_too: one that only starts is stopped now, as one that does not run yet always.
        """
        if self.state != STOPPING:
            at_once = self.state == PENDING or (self.state == STARTING and starting_too)
            self.state, self.stop_by = DRAINING, now if at_once else by

    def ended(self, exit: ProcessExit, *, over: bool) -> str:
        """The process has ended; returns its state before.

        Args:
            over: the job is over, so that all were asked to leave.
        """
        was, self.state, self.exit = self.state, EXITED, str(exit)
        if was == STOPPING and (exit.was_terminated or exit.was_killed or exit.is_unknown):
            self.exit = "stopped"  # not to be taken for one that somebody else has asked to leave
        elif (was == DRAINING or over) and exit.is_unknown:
            self.exit = "left when asked"
        return was

    def become(self, server: Process) -> None:
        """The process of this worker is that of a server from now on."""
        self.state, self.exit = EXITED, f"became {server.name}"
        server.state, server.was_worker, server.started_as = STARTING, True, f"worker-{self.id}"
        server.pid, server.since, server.node = self.pid, self.since, self.node
        server.pod = self.pod

    def wait(self, event: ProcessWaits, now: float) -> None:
        """It does not run yet."""
        if self.state in (PENDING, STARTING):
            self.state, self.waits, self.fix = PENDING, event.why, event.fix
            self.waits_at = (self.waits_at or now) if event.why else None
            self.unplaced = not event.placed

    def run(self, event: ProcessRuns, now: float) -> None:
        """It runs from now on: its time to register begins."""
        if self.state == PENDING:
            self.state, self.started_at = STARTING, now
        self.waits, self.fix, self.waits_at = "", "", None
        self.unplaced, self.node = False, event.node

    def end(self) -> None:
        """It is ended by force as soon as possible."""
        if self.state != EXITED:
            self.lost = True
            self.stop_by = 0.0

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it: the fields that say something."""
        own, told = self.__dict__, self._told
        if told is None:
            told = {name: own[name] for name, usual in _UNTOLD.items() if own[name] != usual}
            own["_told"] = told
        return told

    @classmethod
    def from_state(cls, state: Mapping[str, Any], now: float) -> Process:
        """The inverse of :meth:`to_state`. Whatever was to be done to the process by some time is
        to be done now: it may have been, or not."""
        times = {
            name for name, value in state.items() if name.endswith("_at") and value is not None
        }
        process = cls(**{**state, **dict.fromkeys(times, now)})
        if process.stop_by is not None or process.state == STOPPING:
            process.stop_by = now
        if process.state == STOPPING:
            process.state = DRAINING
        return process


# Fields that are left out where they are as in every process; times are always told.
_UNTOLD = {
    f.name: MISSING if f.name.endswith("_at") else f.default for f in fields(Process) if f.init
}


def to_end_now(
    processes: Sequence[Process], now: float, *, ends_at: float, hurry: bool
) -> list[Process]:
    """Which processes of a job that is over are to be stopped now.

    Args:
        ends_at: when workers that have not left by themselves are stopped.
        hurry: nobody waits for workers.
    """
    # Workers first: they have no use for servers that are gone.
    workers_leave = any(p.role == "worker" for p in processes) and not hurry
    return [
        process
        for process in processes
        if process.state != STOPPING
        and (process.role == "worker" or not workers_leave)
        # One that still builds its model would not hear for seconds that it is over.
        and (process.role == "ps" or now >= ends_at or not process.ready)
    ]


@dataclass(frozen=True)
class Gone:
    """A process is gone, and what it held is free; with a server, the model is lost."""

    text: str
    expected: bool = False
    """A worker that had been told to leave."""


# Deaths in a row of processes while nobody trained, before the job fails.
CRASH_LIMIT = 5
# SIGKILL is how machines are taken away, which is no failure of the job; but the kernel does so too
# when memory is short, for ever. So these deaths count only until anything was ever trained.
KILL_LIMIT = 30
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0


class Deaths:
    """Counts the deaths of processes since something was trained.

    A process that was preempted counts for nothing: one that got SIGTERM never does, and one that
    got SIGKILL only before anything was trained.
    """

    def __init__(self) -> None:
        self.start_after = 0.0
        """No worker is started before."""
        self.trained = False
        """Something was trained, ever: the job fits the memory of its machines."""
        self._crashes = 0
        self._kills = 0
        self._servers = 0
        self._refusals = 0

    def forget(self) -> None:
        """Something was trained."""
        self.trained = True
        self._crashes = self._kills = self._servers = self._refusals = 0

    def of_server(self, exit: ProcessExit, text: str, named: str) -> Gone | Failure:
        """What the end of a server means that served a shard.

        Args:
            text: how it ended.
            named: the same, with its log.
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
        """What the end of a worker means that was not to end.

        Args:
            text: how it ended.
            named: the same, with its log.
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
        """A worker was taken away before it was heard: a machine that refuses it would do so at
        once, for ever."""
        self._refusals = min(self._refusals + 1, 10)
        pause_s = min(_FIRST_BACKOFF_S * 2**self._refusals, _LONGEST_BACKOFF_S)
        self.start_after = max(self.start_after, now + pause_s)

    def killed(self, role: str, text: str) -> Failure | None:
        """SIGKILL ended a process; returns whether the job fails.

        Args:
            role: ``workers`` or ``parameter servers``.
            text: how it died.
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
        """A worker that has trained nothing died by itself; returns whether the job fails."""
        self._crashes += 1
        # The first replacement comes at once: one death is more likely a preemption.
        if self._crashes > 1:
            self.start_after = now + _FIRST_BACKOFF_S * 2 ** (self._crashes - 2)
        if self._crashes >= CRASH_LIMIT:
            return Failure(
                f"workers died {CRASH_LIMIT} times in a row before anything was trained; {text}"
            )
        return None

    def server(self, text: str) -> Failure | None:
        """A parameter server died by itself; returns whether the job fails."""
        self._servers += 1
        if self._servers < CRASH_LIMIT:
            return None
        return Failure(
            f"a parameter server died {CRASH_LIMIT} times in a row before anything was trained; "
            f"{text}"
        )
