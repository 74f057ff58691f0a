"""Processes of a job, one class for each role: their state changes, and those of all. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

from torch_edl.events import ProcessChanged
from torch_edl.processes.launcher import ProcessExit, ProcessRuns, ProcessWaits

T = TypeVar("T")

PENDING, STARTING, RUNNING = "pending", "starting", "running"
DRAINING, STOPPING, EXITED = "draining", "stopping", "exited"


# Seconds until a worker must register: it imports a large framework, maybe on a busy machine.
_REGISTER_S = 180.0
# Number of ended processes that are still listed. In a day on preemptible machines, a job has a
# hundred times as many processes as run at once.
_REMEMBERED = 1_000
_TIDY_FROM = 1_000


@dataclass
class Process:
    """One process that the job has or had.

    :attr:`state`, :attr:`stop_by` and :attr:`waits` change by methods only, which report each
    change to the roster.
    """

    role: ClassVar[str]
    """``worker`` or ``ps``; with :attr:`id`, it identifies the process."""
    kind: ClassVar[str]
    """Role as the user sees it: the role, or ``spare``."""

    id: int
    state: str = STARTING
    """One of the states above, such as :data:`RUNNING`."""
    pid: int = 0
    """Process id; 0 before the start, and for pods."""
    exit: str = ""
    """How the process ended; empty while it runs."""
    died: bool = False
    """True if the process ended by itself, with an error or by a signal."""
    started_at: float = 0.0
    """Time at which the process was started, or began to run in its pod."""
    stop_by: float | None = None
    """Time at which the process is to be stopped; None if it is to run on."""
    lost: bool = False
    """True if the master terminated the process; its exit does not count as a crash."""
    declared: bool = False
    """True if the process was declared lost, which an event tells; its exit is no second loss."""
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
    log: str = ""
    """Log file of the worker of a script, on its machine; empty if there is none."""
    slot: int = -1
    """Slot of the process, the lowest that was free; -1 if it has none."""
    pod: str = ""
    """Pod of the process, see :attr:`torch_edl.processes.launcher.ProcessSpec.pod`."""

    def __post_init__(self) -> None:
        self._changed: Callable[[Process], None] = lambda _: None

    def join(self, changed: Callable[[Process], None]) -> None:
        """Report changes to a roster from now on."""
        self._changed = changed

    @property
    def name(self) -> str:
        """Name in events, such as ``worker-3`` or ``spare-3``."""
        return f"{self.kind}-{self.id}"

    @property
    def place(self) -> str:
        """What the process has and its replacement takes; empty if nothing."""
        return f"slot {self.slot}" if self.slot >= 0 else ""

    def event(self) -> ProcessChanged:
        """Return the event of the current state."""
        return ProcessChanged(
            process=f"{self.role}-{self.id}",
            is_spare=self.kind == "spare",
            state=self.state,
            pid=self.pid,
            exit=self.exit,
            died=self.died,
            place=self.place,
        )

    def enter(self, state: str) -> None:
        """Change the state."""
        self.state = state
        self._changed(self)

    def stop_at(self, time: float | None) -> None:
        """Schedule the stop of the process; None cancels it."""
        self.stop_by = time
        self._changed(self)

    @property
    def may_be_overdue(self) -> bool:
        """True if :meth:`is_overdue` applies: a starting worker."""
        return False

    def is_overdue(self, now: float) -> bool:
        """Return whether a starting worker has been silent for too long."""
        return False

    def end(self) -> None:
        """Mark the process to be killed as soon as possible."""
        if self.state != EXITED:
            self.lost = True
            self.stop_at(0.0)

    def exits(self, text: str) -> None:
        """Record that the process has ended, and how."""
        self.exit = text
        self.enter(EXITED)

    def ended(self, exit: ProcessExit, *, over: bool) -> str:
        """Record the exit of the process; all were asked to leave if the job is ``over``. Returns
        the state before."""
        was, text = self.state, str(exit)
        if was == STOPPING and (exit.was_terminated or exit.was_killed or exit.is_unknown):
            text = "stopped"  # otherwise it looks like a SIGTERM from outside
        elif (was == DRAINING or over) and exit.is_unknown:
            text = "left when asked"
        asked = over or was in (DRAINING, STOPPING) or exit.was_taken
        self.died = not asked and exit.code != 0
        self.exits(text)
        return was

    def wait(self, event: ProcessWaits, now: float) -> None:
        """Record that the process is pending, and why."""
        if self.state in (PENDING, STARTING):
            self.waits, self.fix = event.why, event.fix
            self.waits_at = (self.waits_at or now) if event.why else None
            self.unplaced = not event.placed
            self.enter(PENDING)

    def run(self, event: ProcessRuns, now: float) -> None:
        """Record that the process runs; its time to register begins."""
        self.waits, self.fix, self.waits_at = "", "", None
        self.unplaced, self.node = False, event.node
        self.pid, self.log = event.pid or self.pid, event.log
        if self.state == PENDING:
            self.started_at = now
        self.enter(STARTING if self.state == PENDING else self.state)

    def to_state(self) -> dict[str, Any]:
        """Return all fields for a restarted master, as JSON values; :func:`without_defaults` makes
        them smaller."""
        # A copy takes a fifth of the time of a comparison with the defaults. The lock of the job is
        # held for thousands of processes, once a second.
        state = self.__dict__.copy()
        del state["_changed"]
        state["kind"] = self.kind
        return state


@dataclass
class Participant(Process):
    """A process that trains."""

    trained: bool = False
    """True if the process has finished a minibatch or a task."""
    ready: bool = False
    """True if the process has its model and may lease."""
    heard: bool = False
    """True if the process has registered."""

    def register(self) -> bool:
        """Record the registration. Returns False if the process was told to end."""
        if self.lost or self.state in (EXITED, STOPPING):
            return False
        self.heard = True
        if self.state in (PENDING, STARTING):
            self.enter(RUNNING)
        return True

    def retire(self, now: float, *, by: float, starting_too: bool = True) -> None:
        """Make the process leave, and stop it at ``by`` if it has not left. A pending one is
        stopped now, and a starting one if ``starting_too``."""
        if self.state != STOPPING:
            at_once = self.state == PENDING or (self.state == STARTING and starting_too)
            self.enter(DRAINING)
            self.stop_at(now if at_once else by)


@dataclass
class WorkerProcess(Participant):
    """A process with a worker slot."""

    role: ClassVar[str] = "worker"
    kind: ClassVar[str] = "worker"

    failing: bool = False
    """True if the process of a script is about to end with an exit code other than 0."""

    @property
    def may_be_overdue(self) -> bool:
        return self.state == STARTING

    def is_overdue(self, now: float) -> bool:
        return self.state == STARTING and now - self.started_at >= _REGISTER_S


@dataclass
class Spare(Process):
    """A pod without a process, whose node waits for one. Role and id are those of the worker that
    may start there; see :mod:`master.state.workforce.spares`."""

    role: ClassVar[str] = "worker"
    kind: ClassVar[str] = "spare"

    def run(self, event: ProcessRuns, now: float) -> None:
        super().run(event, now)
        self.enter(RUNNING)

    def as_worker(self, now: float) -> WorkerProcess:
        """Return the worker that starts in this pod."""
        own = {f.name: getattr(self, f.name) for f in fields(Process)}
        return WorkerProcess(**{**own, "state": PENDING, "started_at": now})


@dataclass
class ServerProcess(Process):
    """A parameter server."""

    role: ClassVar[str] = "ps"
    kind: ClassVar[str] = "ps"

    heard_at: float | None = None
    """Time of the last heartbeat; None before the first."""
    shard: int = 0
    incarnation: int = 0
    """Number of the server process, unique in the job; 0 before it has its shard."""
    address: str = ""
    """Address of the server; empty before the server listens."""
    data_plane: str = ""
    """Address at which a server answers pulls and pushes; empty if it is :attr:`address`."""
    problem: str = ""
    """Reason why the server rejects pushes; empty if it accepts them."""
    keeper: int = 0
    """Incarnation of the server that keeps a copy of this server's shard; 0 if none does."""
    leaving: bool = False
    """True for a server that was asked to end and stays until others can do without it."""
    released: bool = False
    """True for a server that was asked to end and may do so now."""

    @property
    def place(self) -> str:
        return f"shard {self.shard}"

    @property
    def last_sign(self) -> float:
        """Time of the last heartbeat; of the start before the first."""
        return self.started_at if self.heard_at is None else self.heard_at


_KINDS: dict[str, type[Process]] = {
    each.kind: each for each in (WorkerProcess, Spare, ServerProcess)
}
# The default of a start is no time; :func:`restored` sets those that it is told.
_DEFAULTS: dict[str, dict[str, Any]] = {
    kind: {f.name: f.default for f in fields(of) if f.name not in ("id", "started_at")}
    for kind, of in _KINDS.items()
}


def without_defaults(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a process without the fields that have their default. The time of the
    last heartbeat becomes 0: :func:`restored` only needs to know that there was one."""
    defaults = _DEFAULTS[state["kind"]]
    kept = {n: value for n, value in state.items() if n not in defaults or value != defaults[n]}
    if "heard_at" in kept:
        kept["heard_at"] = 0.0
    return kept


def restored(state: Mapping[str, Any], now: float, then: float) -> Process:
    """Return the process of :meth:`Process.to_state` of the time ``then``. A process that has time
    to leave keeps the rest of it. A stop that was due becomes due now, since it may not have been
    carried out."""
    told = {n: value for n, value in state.items() if n != "kind"}
    times = {n for n, value in told.items() if n.endswith("_at") and value is not None}
    process = _KINDS[state["kind"]](**{**told, **dict.fromkeys(times, now)})
    if process.state == STOPPING:
        process.stop_at(now)
        process.enter(DRAINING)
    elif process.stop_by is not None:
        process.stop_at(now + max(0.0, process.stop_by - then))
    return process


class Roster:
    """Processes by role and id. Queries over running processes do not iterate over ended ones."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], Process] = {}
        self._running: dict[str, dict[int, Process]] = {}
        """Processes by role and id; some may have ended since the last clean-up."""
        self._ended: deque[tuple[str, int]] = deque()
        self._tidy_at = _TIDY_FROM
        self._alive: dict[str | None, OfAll[list[Process]]] = {}
        self.changes = 0
        """Number of changes of processes, apart from the times of their heartbeats."""
        self._last: dict[str, ProcessChanged] = {}  # newest event of each process
        self._events: list[ProcessChanged] = []

    def _changed(self, process: Process) -> None:
        self.changes += 1
        event = process.event()
        if self._last.get(event.process) != event:
            self._last[event.process] = event
            self._events.append(event)

    def take_events(self) -> list[ProcessChanged]:
        """Return the changes of states since the last call."""
        events, self._events = self._events, []
        return events

    def __iter__(self) -> Iterator[Process]:
        return iter(self._all.values())

    def __getitem__(self, key: tuple[str, int]) -> Process:
        return self._all[key]

    def process(self, role: str, id: int) -> Process | None:
        """Return a process that runs or ended not long ago; None if it is unknown."""
        return self._all.get((role, id))

    def add(self, process: Process) -> None:
        """Add a process."""
        self.put(process)
        if len(self._running[process.role]) >= self._tidy_at:
            self._tidy()

    def put(self, process: Process) -> None:
        """Set the process with this role and number."""
        self._all[process.role, process.id] = process
        self._running.setdefault(process.role, {})[process.id] = process
        process.join(self._changed)
        self._changed(process)

    def alive(self, kind: str | None = None) -> list[Process]:
        """Return the processes that have not ended: ``worker``, ``spare``, ``ps``, or all."""
        if kind not in self._alive:
            self._alive[kind] = OfAll(self, lambda: self._find(kind))
        return self._alive[kind]()

    def _find(self, kind: str | None) -> list[Process]:
        if kind is None:
            return [p for of in self._running.values() for p in of.values() if p.state != EXITED]
        of = self._running.get("worker" if kind == "spare" else kind, {})
        return [p for p in of.values() if p.kind == kind and p.state != EXITED]

    def _tidy(self) -> None:
        for role, running in self._running.items():
            for id in [id for id, process in running.items() if process.state == EXITED]:
                del running[id]
                self._ended.append((role, id))
        while len(self._ended) > _REMEMBERED:
            role, id = self._ended.popleft()
            del self._all[role, id]
            self._last.pop(f"{role}-{id}", None)
        most = max(map(len, self._running.values()))
        self._tidy_at = max(_TIDY_FROM, 2 * most)


class OfAll(Generic[T]):
    """A cached query over a roster, recomputed after a process changed."""

    def __init__(self, roster: Roster, find: Callable[[], T]) -> None:
        self._roster = roster
        self._find = find
        self._found: tuple[int, T] | None = None

    def __call__(self) -> T:
        if self._found is None or self._found[0] != self._roster.changes:
            self._found = self._roster.changes, self._find()
        return self._found[1]
