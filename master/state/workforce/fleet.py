"""The processes that a job should have. Pure: :meth:`Fleet.plan` returns what to start and stop.

Workers start at once, since their imports take seconds. Servers follow when the strategy is known,
spares when the workers train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from master.state.actions import Action, Become, Failure, Note, Start, Stop
from master.state.role_changes import RoleChanges
from master.state.workforce.machines import Machines
from master.state.workforce.places import Places
from master.state.workforce.processes import (
    DRAINING,
    EXITED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    Deaths,
    Gone,
    Process,
    to_end_now,
)
from master.state.workforce.roster import OfAll, Roster
from master.state.workforce.server_command import ServerCommand
from master.state.workforce.servers import Servers
from master.state.workforce.spares import Spares
from torch_edl.processes.spec import ProcessExit, ProcessSpec
from torch_edl.wire import master_pb2 as pb

T = TypeVar("T")

_STOP_GRACE_S = 2.0
_DRAIN_S = 60.0
_UNUSED_DRAIN_S = 10.0
# Seconds until the next start, after a worker could not be started.
_PLACE_AGAIN_S = 10.0
_KEPT = ("strategy", "incarnation", "restored_from", "values_only", "workers_wanted", "life")


class Fleet:
    """The processes of one job.

    Args:
        server_command: command line of a server.
        workers: number of workers to keep alive.
        servers: number of parameter servers, for the strategy ``ps``.
        spares: number of spares to keep.
        workers_per_pod: number of workers with neighbouring places that share a pod.
        worker_module: module of workers, run with ``python -m``.
        asks: processes are scheduled by a cluster and may stay pending.
        life: name of the fleet, kept across restarts of the master.
    """

    external = False
    """True if agents start and stop the workers; the master starts only servers (and agents)."""

    def __init__(
        self,
        server_command: ServerCommand,
        *,
        workers: int,
        servers: int,
        worker_module: str = "torch_edl.training.worker",
        spares: int = 0,
        workers_per_pod: int = 1,
        asks: bool = False,
        life: str = "",
    ) -> None:
        self.env: dict[str, str] = {}
        self.workers_wanted = workers
        """Number of workers to keep alive."""
        self.strategy = ""
        self.server_command = server_command
        self._worker_module = worker_module
        self._places = Places(workers_per_pod)
        self._processes = Roster()
        self.incarnation = 0
        """Incarnation of the model: 0 until the strategy is known, then from 1."""
        self.restored_from = ""
        """Checkpoint or exported model that this incarnation starts from; empty for a new model."""
        self.values_only = False
        """True if only values are taken from :attr:`restored_from`."""
        self.servers = Servers(servers)
        self.spares = Spares(spares)
        self.duties = RoleChanges()
        self._next_id = {"worker": 0, "ps": 0}
        self.life = life
        self.machines = Machines()
        self._first_state = PENDING if asks else STARTING
        self._deaths = Deaths()
        self._ending: float | None = None
        self._hurry = False
        self._retired = False
        self._watched = self.of_all(
            lambda: [p for p in self.launched() if p.stop_by is not None or p.may_be_overdue]
        )
        self.draining = self.of_all(
            lambda: [p.id for p in self.alive("worker") if p.state == DRAINING]
        )
        """Query for the ids of workers that are to finish their work and leave."""
        self._staying = self.of_all(
            lambda: [p for p in self.alive("worker") if p.state in (PENDING, STARTING, RUNNING)]
        )

    # ---- what it says ----

    def of_all(self, find: Callable[[], T]) -> OfAll[T]:
        """Return a cached query over the processes, recomputed after a process changed."""
        return OfAll(self._processes, find)

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes)

    def process(self, role: str, id: int) -> Process | None:
        """Return a process that runs or ended not long ago; None if it is unknown."""
        return self._processes.get(role, id)

    def alive(self, role: str | None = None) -> list[Process]:
        """Return the processes that have not ended: ``worker``, ``spare``, ``ps``, or all."""
        return self._processes.alive(role)

    def cluster(self, *, starting: bool = False) -> pb.Cluster | None:
        """Return the current servers; None before the strategy is known, or while a server starts.

        Args:
            starting: return the servers also while one of them starts.
        """
        servers = self.servers.now() if self.strategy == "ps" else []
        if not self.strategy or not (starting or all(server.address for server in servers)):
            return None
        return pb.Cluster(
            incarnation=self.incarnation,
            servers=servers,
            restored_from=self.restored_from,
            values_only=self.values_only,
        )

    def launched(self) -> list[Process]:
        """Return the processes that the master started and that have not ended."""
        return self.alive()

    # ---- what happens ----

    def decide(self, strategy: str, *, restore: str, values_only: bool = False) -> None:
        """Set the strategy: servers may start.

        Args:
            restore: checkpoint or exported model to load; empty if none.
            values_only: ignore the watermarks and the optimizer state of ``restore``.
        """
        assert not self.strategy
        self.strategy = strategy
        self.incarnation, self.restored_from, self.values_only = 1, restore, values_only

    def renew(self, *, restore: str, values_only: bool = False) -> None:
        """Begin an incarnation of the model: new servers replace the old and load ``restore``."""
        for process in self.servers.renew():
            process.end()
        self.incarnation += 1
        self.restored_from, self.values_only = restore, values_only

    def started(self, role: str, id: int, pid: int, since: int = 0) -> None:
        """Record the pid of a process that was started."""
        process = self._processes[role, id]
        process.pid, process.since = pid, since

    def not_started(self, role: str, id: int, reason: str, now: float) -> None:
        """Record that a process could not be started."""
        process = self._processes[role, id]
        process.state, process.exit = EXITED, reason
        if process.spare:
            self.spares.died(now)
        elif role == "worker":
            self._deaths.start_after = now + _PLACE_AGAIN_S

    def registered(self, id: int) -> bool:
        """Record a worker's registration. Returns False if it is unknown or told to end."""
        process = self.process("worker", id)
        return process is not None and process.register()

    def ready(self, worker: int) -> None:
        """Record that a worker has its model and may lease."""
        process = self.process("worker", worker)
        if process is not None and not process.ready:
            process.ready = True

    def trained(self, worker: int) -> None:
        """Record that a worker made progress, which resets the count of crashes."""
        process = self.process("worker", worker)
        if process is not None and not process.trained:
            process.trained = True
        self._deaths.forget()

    def retire(self, now: float, *, by: float) -> None:
        """Make all workers leave, and start no more.

        Args:
            by: time at which workers that have not left are stopped; starting ones stop now.
        """
        self._retired = True
        for process in self.alive("spare"):
            process.stop_by = now
        for process in self.alive("worker"):
            process.retire(now, by=by)

    def leaves(self, worker: int, now: float, *, by: float) -> None:
        """Record that a worker received SIGTERM from outside; it gets no further task.

        Args:
            by: time at which it is stopped if it has not left.
        """
        process = self._processes.get("worker", worker)
        if process is not None and process.state in (STARTING, RUNNING):
            process.state, process.stop_by = DRAINING, by

    def hurry(self) -> None:
        """End processes without a grace period from now on."""
        for process in self.alive(None):
            process.lost = True
            if process.state == STOPPING:
                process.state = RUNNING

    def server_lost(self, process: Process) -> None:
        """Kill a lost server and free its shard for a successor."""
        self.servers.vacate(process)
        process.end()

    def lost(self, worker: int) -> None:
        """Kill a worker that hangs or does not answer; it is replaced."""
        if (process := self.process("worker", worker)) is not None:
            process.end()

    def exited(self, exit: ProcessExit, now: float, *, log: str) -> Gone | Failure | Note | None:
        """Record the exit of a process. Returns the event that follows, if any."""
        process = self._processes[exit.role, exit.id]
        was = process.ended(exit, over=self._ending is not None)
        text = f"{process.name} {exit.how}"
        named = f"{text}; its log is {log}"
        if exit.role == "ps":
            if self._ending is not None or process not in self.servers:
                return None
            return self._deaths.of_server(exit, text, named)
        if process.spare:
            self.spares.died(now)
            over = self._ending is not None or (was == STOPPING and not process.lost)
            return None if over else Note("info", f"{named}; no worker is lost")
        asked = exit.was_terminated or was in (DRAINING, STOPPING)
        if self._ending is not None or (asked and not process.lost):
            return Gone(text, expected=True)
        return self._deaths.of_worker(exit, text, named, now, process=process)

    def end(self, now: float, *, leave_s: float) -> None:
        """End all processes: the job is over.

        Args:
            leave_s: seconds that workers have to leave, with servers staying until then; 0 stops
                everything at once.
        """
        self._hurry = leave_s <= 0
        if self._ending is None or now + leave_s < self._ending:
            self._ending = now + leave_s

    # ---- what to do ----

    def plan(self, now: float) -> list[Action]:
        """Return the processes to start and stop now; each action is returned once."""
        actions: list[Action] = []
        if self._ending is not None:
            ending = to_end_now(self.launched(), now, ends_at=self._ending, hurry=self._hurry)
            return [self._stop(process) for process in ending]
        for process in self._watched():
            if process.is_overdue(now):
                process.end()
            if process.stop_by is not None and now >= process.stop_by:
                process.stop_by = None
                actions.append(self._stop(process))
        if self.strategy == "ps":
            actions += [self._start_server(shard, now) for shard in self.servers.missing()]
        if not self._retired:
            actions += self._fit(now)
        return actions

    def _stop(self, process: Process) -> Stop:
        process.state = STOPPING
        return Stop(process.role, process.id, 0.0 if process.lost else _STOP_GRACE_S)

    def _start_server(self, shard: int, now: float) -> Action:
        words = self.server_command.words(
            shard,
            self.servers.shards,
            self.servers.made + 1,
            model=self.incarnation,
            restore=self.restored_from,
            values_only=self.values_only,
            successor=self.servers.has_copy(shard),
        )
        process, start = self._start("ps", self.server_command.module, words, now)
        self.servers.take(process, shard)
        worker = self.future_server(now) if shard in self.duties.shards else None
        if worker is None:
            return start
        worker.become(process)
        self.duties.give(worker.id, words)
        return Become(worker.id, process.id)

    def future_server(self, now: float) -> Process | None:
        """Return the process that a server can be made of: a spare, or a worker if not the last
        one."""
        running = [p for p in self.alive("worker") if p.state == RUNNING]
        last = running[-1] if len(running) > 1 and not self.external else None
        return self.spares.ready(self.alive("spare"), now) or last

    def _fit(self, now: float) -> Sequence[Action]:
        """Return actions that start or retire workers until their number is as wanted."""
        workers = self.alive("worker")
        staying, wanted = self._staying(), self.workers_wanted
        if len(staying) > wanted:
            # A starting worker has nothing to finish.
            for process in self._places.beyond(wanted, staying):
                drain_s = _DRAIN_S if process.trained else _UNUSED_DRAIN_S
                process.retire(now, by=now + drain_s, starting_too=False)
        # Leaving and hanging workers count until they exit, so the maximum is never exceeded.
        missing, spares = max(0, wanted - len(workers)), self.alive("spare")
        if len(staying) >= wanted:
            more = self.spares.missing(len(spares), staying, now)
            return [self._start_worker(now, spare=True) for _ in range(more)]
        while missing > 0 and self.spares.take(spares, now):
            missing -= 1
        missing *= now >= self._deaths.start_after
        places = self._places.free(missing, self.alive("worker"))
        return [self._start_worker(now, place=place) for place in places]

    def _start_worker(self, now: float, *, spare: bool = False, place: int = -1) -> Start:
        id = self._next_id["worker"]
        words = ["--job", self.server_command.job, "--id", str(id), *["--spare"] * spare]
        pod = self._places.pod(place, id, self._staying())
        process, start = self._start("worker", self._worker_module, words, now, place, pod)
        process.spare = spare
        return start

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values."""
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "servers": self.servers.to_state(),
            "spares": self.spares.to_state(),
            "next_id": dict(self._next_id),
            "retired": self._retired,
            "hurry": self._hurry,
            "trained": self._deaths.trained,
            "duties": self.duties.to_state(),
            "processes": [process.to_state() for process in self],
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """Restore what :meth:`to_state` returned."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self._next_id, self._retired = dict(state["next_id"]), state["retired"]
        self._hurry, self._deaths.trained = state["hurry"], state["trained"]
        self.duties.from_state(state["duties"])
        self.spares.from_state(state["spares"])
        for each in state["processes"]:
            self._processes.add(Process.from_state(each, now))
        self.servers.from_state(state["servers"], self.alive("ps"))

    def _start(
        self,
        role: str,
        module: str,
        args: Sequence[str],
        now: float,
        place: int = -1,
        pod: int = -1,
    ) -> tuple[Process, Start]:
        id = self._next_id[role]
        self._next_id[role] += 1
        process = Process(role, id, state=self._first_state, started_at=now, place=place, pod=pod)
        self._processes.add(process)
        spec = ProcessSpec(
            role=role,
            id=id,
            module=module,
            args=args,
            env=dict(self.env),
            end_with_parent=0,  # the next master adopts it
            place=place,
            pod=pod,
            avoid=self.machines.avoided(now),
        )
        return process, Start(spec)
