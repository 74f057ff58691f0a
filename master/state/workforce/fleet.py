"""The processes that a job should have. Pure: :meth:`Fleet.plan` returns what to start and stop.

Workers start at once, since their imports take seconds. Servers follow when the strategy is known,
spare pods when the workers train. The workers of a script run its whole program: one that has come
to its end is not replaced, and the job is over with the last of them. torchrun starts its workers
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from master.state.actions import Action, Failure, Start, Stop
from master.state.workforce.deaths import Deaths, Gone
from master.state.workforce.idle_pods import IdlePods
from master.state.workforce.processes import (
    DRAINING,
    EXITED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    OfAll,
    Participant,
    Process,
    Roster,
    ServerProcess,
    Spare,
    WorkerProcess,
    restored,
)
from master.state.workforce.servers import ModelStart, ServerCommand, Servers
from master.state.workforce.spares import Spares
from master.state.workforce.starts import SCRIPT, P, Starts, free_slots
from torch_edl.config import Launch
from torch_edl.events import SpareEnded
from torch_edl.processes.launcher import ProcessExit, ProcessNotStarted, ProcessRuns
from torch_edl.wire import master_pb2 as pb

_STOP_GRACE_S = 2.0
_DRAIN_S = 60.0
_UNUSED_DRAIN_S = 10.0
# Seconds until the next start, after a worker could not be started.
_PLACE_AGAIN_S = 10.0


class Fleet(Roster):
    """The processes of one job.

    Args:
        server_command: command line of a server.
        workers: number of workers to keep alive.
        servers: number of parameter servers, for the strategy ``ps``.
        spares: number of spare pods to keep.
        workers_per_pod: number of workers with neighbouring slots that share a pod.
        worker_module: module of workers, run with ``python -m``.
        is_scheduled: processes may stay pending until a machine has room.
        in_pods: processes run in pods.
        name: name of the fleet, kept across restarts of the master.
        launch: how the workers of a script are started; None for a model file.
        starts_workers: False if torchrun starts the workers.
    """

    def __init__(
        self,
        server_command: ServerCommand,
        *,
        workers: int,
        servers: int,
        worker_module: str = "torch_edl.training.worker",
        spares: int = 0,
        workers_per_pod: int = 1,
        is_scheduled: bool = False,
        in_pods: bool = False,
        name: str = "",
        launch: Launch | None = None,
        starts_workers: bool = True,
    ) -> None:
        super().__init__()
        self._launch = launch
        self.starts_workers = starts_workers
        """False if torchrun starts the workers."""
        self._begun: set[int] = set()  # slots in which a worker of a script has run
        self.completed: set[int] = set()
        """Slots whose worker has come to the end of its script."""
        self.workers_wanted = workers
        """Number of workers to keep alive."""
        self.strategy = ""
        self.server_command = server_command
        self._worker_module = worker_module
        self.model = ModelStart()
        self.servers = Servers(servers)
        self.spares = Spares(spares)
        self.name = name
        self.starts = Starts(
            is_scheduled=is_scheduled, in_pods=in_pods, workers_per_pod=workers_per_pod
        )
        self._idle_pods = IdlePods()
        self._deaths = Deaths(launch.max_restarts if launch is not None else None)
        self._leave_by: float | None = None  # once the job is over
        self._at_once = False  # everything stops when the job is over
        self._retired = False
        self._planned_at = 0.0
        self._watched = OfAll(
            self,
            lambda: [
                process
                for process in self.launched()
                # A script may run as long as it likes before it registers.
                if process.stop_by is not None or (launch is None and process.may_be_overdue)
            ],
        )
        self.draining = OfAll(
            self, lambda: [p.id for p in self.alive("worker") if p.state == DRAINING]
        )
        """Query for the ids of workers that are to finish their work and leave."""
        self._workers = OfAll(
            self, lambda: [p for p in self.alive("worker") if isinstance(p, WorkerProcess)]
        )
        self._staying = OfAll(
            self, lambda: [p for p in self._workers() if p.state in (PENDING, STARTING, RUNNING)]
        )

    # ---- what it says ----

    def worker(self, id: int) -> WorkerProcess | None:
        """Return a worker that runs or ended not long ago; None if it is unknown."""
        process = self.process("worker", id)
        return process if isinstance(process, WorkerProcess) else None

    def cluster(self, *, starting: bool = False) -> pb.Cluster | None:
        """Return the current servers; None before the strategy is known or, unless ``starting``,
        while a server starts."""
        servers = self.servers.now() if self.strategy == "ps" else []
        if not self.strategy or not (starting or all(server.address for server in servers)):
            return None
        return pb.Cluster(
            incarnation=self.model.incarnation,
            servers=servers,
            restored_from=self.model.restored_from,
            values_only=self.model.values_only,
        )

    def launched(self) -> list[Process]:
        """Return the processes that the master started and that have not ended."""
        return self.alive() if self.starts_workers else self.alive("ps")

    # ---- what happens ----

    def decide(self, strategy: str, *, restore: str, values_only: bool = False) -> None:
        """Set the strategy: servers may start. ``restore`` is the checkpoint or exported model to
        load, if any."""
        assert not self.strategy
        self.strategy = strategy
        self.model = ModelStart(1, restore, values_only)

    def renew(self, *, restore: str, values_only: bool = False) -> None:
        """Begin an incarnation of the model: new servers replace the old and load ``restore``."""
        for process in self.servers.renew():
            process.end()
        self.model = ModelStart(self.model.incarnation + 1, restore, values_only)

    def not_started(self, event: ProcessNotStarted, now: float) -> None:
        """Record that a process did not start."""
        process = self[event.role, event.id]
        process.exits(event.why or "was not started")
        if isinstance(process, Spare):
            self.spares.died(now)
        elif event.role == "worker":
            self._deaths.start_after = now + _PLACE_AGAIN_S
        elif event.why:
            self.servers.start_after = now + _PLACE_AGAIN_S

    @property
    def has_begun(self) -> bool:
        """True if a worker of a script has run."""
        return bool(self._begun)

    @property
    def present(self) -> bool:
        """True if a worker runs, or may start on a machine that the job has."""
        return any(not process.unplaced for process in self.alive("worker"))

    @property
    def scripts_over(self) -> bool:
        """True if a worker of a script has come to its end, and no other runs or may start."""
        return bool(self.completed) and not self.present and not self._slots_to_fill()

    def runs(self, process: Process, event: ProcessRuns, now: float) -> None:
        """Record that a process runs."""
        process.run(event, now)
        if self._launch is not None and isinstance(process, WorkerProcess):
            self._begun.add(process.slot)

    def fails(self, worker: int, now: float) -> None:
        """Record that a worker of a script is about to fail. If no restart is left, the others end
        now; otherwise, they would train until its end."""
        process = self.worker(worker)
        if process is None or not self._deaths.ends_job(process):
            return
        process.failing = True
        for other in self._workers():
            if not other.failing:
                other.retire(now, by=now)

    def adopt(self, id: int, pid: int) -> None:
        """Add a worker that torchrun started."""
        self.add(WorkerProcess(id, state=RUNNING, pid=pid))

    def abandon(self, worker: int, exit: str) -> None:
        """Mark a worker of torchrun as exited, after its exit or its loss."""
        process = self.process("worker", worker)
        if process is not None and process.state != EXITED:
            process.exits(exit)

    def registered(self, id: int) -> bool:
        """Record a worker's registration. Returns False if it is unknown or told to end."""
        worker = self.worker(id)
        return worker is not None and worker.register()

    def ready(self, worker: int) -> None:
        """Record that a worker has its model and may lease."""
        if (process := self.worker(worker)) is not None:
            process.ready = True

    def trained(self, worker: int) -> None:
        """Record that a worker made progress, which resets the count of crashes."""
        if (process := self.worker(worker)) is not None:
            process.trained = True
        self._deaths.forget()

    def retire(self, now: float, *, by: float) -> None:
        """Make all workers leave, and start no more. Those that have not left are stopped at
        ``by``, starting ones now."""
        self._retired = True
        for spare in self.alive("spare"):
            spare.stop_at(now)
        for worker in self._workers():
            # A script may run for long without a message of the master.
            worker.retire(now, by=by if self._launch is None else now)

    def leaves(self, worker: int, now: float, *, by: float, preempted: bool = False) -> None:
        """Record that a worker received SIGTERM or a notice from outside: it gets no further task,
        and is stopped at ``by``. A notice that a new worker finds may stand on its machine for a
        while: the next worker waits."""
        process = self.worker(worker)
        if process is not None and preempted and not process.trained:
            self._deaths.start_after = now + _PLACE_AGAIN_S
        if process is not None and process.state in (STARTING, RUNNING):
            process.enter(DRAINING)
            process.stop_at(by)

    def hurry(self) -> None:
        """End processes without a grace period from now on."""
        for process in self.alive(None):
            process.lost = True
            if process.state == STOPPING:
                process.enter(RUNNING)

    def server_lost(self, process: ServerProcess) -> None:
        """Kill a lost server and free its shard for a successor."""
        self.servers.vacate(process)
        process.end()

    def lost(self, worker: int) -> None:
        """Kill a worker that was declared lost; it is replaced."""
        if (process := self.process("worker", worker)) is not None:
            process.declared = True
            process.end()

    def exited(
        self, exit: ProcessExit, now: float, *, log: str
    ) -> Gone | Failure | SpareEnded | None:
        """Record the exit of a process. Returns the event that follows, if any."""
        process = self[exit.role, exit.id]
        event = self._consequence(process, exit, now, log=log)
        if exit.pod_lives:
            crashed = not (exit.was_terminated or exit.was_taken or exit.code == 0)
            replaced = isinstance(event, Gone) and not event.expected
            avoided = exit.node in self.starts.machines.avoided(now)
            self._idle_pods.add(process, reuse=crashed and replaced and not avoided)
        return event

    def _consequence(
        self, process: Process, exit: ProcessExit, now: float, *, log: str
    ) -> Gone | Failure | SpareEnded | None:
        was = process.ended(exit, over=self._over)
        gone = Gone(process.name, exit.way, str(exit), declared=process.declared)
        named = f"{process.name} {exit.how}; its log is {log}"
        if exit.role == "ps":
            if self._over or process not in self.servers:
                return None
            return self._deaths.of_server(exit, gone, named)
        if isinstance(process, Spare):
            self.spares.died(now)
            asked = self._over or was == STOPPING
            ended = SpareEnded(process=process.name, way=exit.way, cause=str(exit), log=log)
            return None if asked else ended
        asked = was in (DRAINING, STOPPING)
        if self._launch is None:
            asked = asked or exit.was_terminated
        elif exit.completed and not asked:
            self.completed.add(process.slot)
            return None
        if self._over or (asked and not process.lost):
            return replace(gone, expected=True)
        assert isinstance(process, Participant)
        return self._deaths.of_worker(exit, gone, named, now, process=process)

    def end(self, now: float, *, leave_s: float) -> None:
        """End all processes: the job is over. Workers have ``leave_s`` seconds to leave, with
        servers staying until then; 0 stops everything at once. A later call may only shorten the
        time."""
        self._at_once = leave_s <= 0
        if self._leave_by is None or now + leave_s < self._leave_by:
            self._leave_by = now + leave_s

    @property
    def _over(self) -> bool:
        return self._leave_by is not None

    # ---- what to do ----

    def plan(self, now: float) -> list[Action]:
        """Return the processes to start and stop now; each action is returned once."""
        self._planned_at = now
        if self._over:
            return [self._stop(process) for process in self._due_at_end(now)]
        actions: list[Action] = []
        if self.strategy == "ps" and now >= self.servers.start_after:
            # Before the stops: the pod of a worker that makes room for a server must not end.
            actions += [self._start_server(shard, now) for shard in self.servers.missing()]
        for process in self._watched():
            if self._launch is None and process.is_overdue(now):
                process.end()
            if process.stop_by is not None and now >= process.stop_by:
                process.stop_at(None)
                actions.append(self._stop(process))
        if not self._retired:
            if self._launch is not None:
                actions += self._fit_script(now)
            elif self.starts_workers:
                actions += self._fit(now)
        awaited = () if self._retired or now >= self._deaths.start_after else ("worker",)
        idle = self._idle_pods.unused(awaited)
        return [*actions, *(Stop(process.role, process.id, 0.0) for process in idle)]

    def _due_at_end(self, now: float) -> list[Process]:
        assert self._leave_by is not None
        running, late = self.launched(), now >= self._leave_by
        # Workers leave before servers: they may still need them.
        waits = any(process.role == "worker" for process in running) and not self._at_once
        # A worker without a model is stopped at once: it would receive the end only after seconds.
        return [
            p
            for p in running
            if p.state != STOPPING
            and (not waits if p.role == "ps" else late or not getattr(p, "ready", False))
        ]

    def _stop(self, process: Process) -> Stop:
        process.enter(STOPPING)
        grace_s = _STOP_GRACE_S
        if process.role == "worker" and self._launch is not None:
            grace_s = self._launch.grace_s
        if process.role == "worker" and self.servers.starts_in(process.pod):
            grace_s = 0.0  # all workers wait for the server
        return Stop(process.role, process.id, 0.0 if process.lost else grace_s)

    def _start(
        self,
        kind: type[P],
        module: str,
        words: Sequence[str],
        now: float,
        *,
        slot: int = -1,
        pod: str = "",
        apart: Sequence[int] = (),
    ) -> tuple[P, Start]:
        process, start = self.starts.make(kind, module, words, now, slot=slot, pod=pod, apart=apart)
        self.add(process)
        return process, start

    def _start_server(self, shard: int, now: float) -> Action:
        words = self.server_command.words(
            shard,
            self.servers.shards,
            self.servers.made + 1,
            model=self.model,
            successor=self.servers.has_copy(shard),
        )
        words = ["--id", str(self.starts.next_id("ps")), *words]
        last = self.servers.slots.pop(shard, None) or self._idle_pods.take("ps", shard)
        slot, pod = (last.slot, last.pod) if last is not None else (-1, "")
        module, near = self.server_command.module, self.servers.neighbours(shard)
        server, start = self._start(
            ServerProcess, module, words, now, slot=slot, pod=pod, apart=near
        )
        self.servers.take(server, shard)
        return start

    def slot_for_server(self) -> Process | None:
        """Return the spare, or the worker if not the last one, that can make room for a server in
        its pod; None if there is none, or if processes have no pods."""
        if not self.starts.in_pods:
            return None
        workers = self.alive("worker")
        running = [p for p in workers if p.state == RUNNING and p.stop_by is None]
        last = running[-1] if len(running) > 1 and self._launch is None else None
        return self.spares.ready(self.alive("spare")) or last

    def make_room(self, process: Process, shard: int) -> None:
        """Stop a worker or a spare at once. The next server of the shard starts in its pod."""
        self.servers.slots[shard] = process
        self.servers.start_after = 0.0
        process.stop_at(0.0)

    def has_idle_pod(self, shard: int) -> bool:
        """Return whether the next server of a shard starts in the pod of the last one."""
        return self._idle_pods.has("ps", shard)

    def _fit(self, now: float) -> Sequence[Action]:
        workers = self._workers()
        staying, wanted = self._staying(), self.workers_wanted
        # A starting worker has nothing to finish.
        for process in self.starts.beyond(wanted, staying) if len(staying) > wanted else ():
            drain_s = _DRAIN_S if process.trained else _UNUSED_DRAIN_S
            process.retire(now, by=now + drain_s, starting_too=False)
        # Leaving and hanging workers count until they exit, so the maximum is never exceeded.
        missing = max(0, wanted - len(workers))
        if len(staying) >= wanted:
            more = self.spares.missing(len(self.alive("spare")), staying, now)
            slots = free_slots(more, self.alive())
            return [self._start(Spare, "", (), now, slot=slot)[1] for slot in slots]
        missing *= now >= self._deaths.start_after
        slots = free_slots(missing, self.alive())
        return [self._start_worker(now, slot=slot) for slot in slots]

    def _start_worker(self, now: float, *, slot: int) -> Start:
        id = self.starts.next_id("worker")
        last = self._idle_pods.take("worker", slot)
        neighbours = self.starts.pod_of_neighbours(slot, self._staying())
        pod = last.pod if last is not None else neighbours
        spare = self.spares.ready(self.alive("spare")) if not pod else None
        if spare is not None:
            self.spares.used()
            self.put(worker := spare.as_worker(now))
            return self.starts.start(worker, self._worker_module, self._worker_args(spare.id), now)
        module, words = self._worker_module, self._worker_args(id)
        if self._launch is not None:
            module, words = SCRIPT, []
        return self._start(WorkerProcess, module, words, now, slot=slot, pod=pod)[1]

    def _worker_args(self, id: int) -> list[str]:
        return ["--job", self.server_command.job, "--id", str(id)]

    def _fit_script(self, now: float) -> Sequence[Action]:
        for process in self._staying():
            if process.slot >= self.workers_wanted:
                process.retire(now, by=now)
        if now < self._deaths.start_after or any(worker.failing for worker in self._workers()):
            return []
        return [self._start_worker(now, slot=slot) for slot in self._slots_to_fill()]

    def _slots_to_fill(self) -> list[int]:
        """Return the slots in which a worker of the script is to start. After one worker has come
        to the end of the script, another one would have nothing to do in a new slot."""
        assert self._launch is not None
        taken = {worker.slot for worker in self._workers()} | self.completed
        wanted = range(self.workers_wanted)
        if self.completed:
            return sorted(self._begun.intersection(wanted) - taken)
        return [slot for slot in wanted if slot not in taken]

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "workers_wanted": self.workers_wanted,
            "name": self.name,
            "model": asdict(self.model),
            "servers": self.servers.to_state(),
            "spares": self.spares.to_state(),
            "next_id": self.starts.to_state(),
            "retired": self._retired,
            # The remaining time of processes that must leave counts from this time. Without such
            # processes it is a constant: a state with a new time would be written every second.
            "planned_at": self._planned_at if any(p.stop_by for p in self.alive()) else 0.0,
            "deaths": self._deaths.to_state(),
            "begun": sorted(self._begun),
            "completed": sorted(self.completed),
            "processes": [process.to_state() for process in self],
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.strategy, self.workers_wanted = state["strategy"], state["workers_wanted"]
        self.name = state["name"]
        self.model = ModelStart(**state["model"])
        self.starts.from_state(state["next_id"])
        self._retired = state["retired"]
        self._deaths.from_state(state["deaths"], now)
        self._begun, self.completed = set(state["begun"]), set(state["completed"])
        self.spares.from_state(state["spares"])
        self._planned_at = now
        for each in state["processes"]:
            self.add(restored(each, now, state["planned_at"]))
        self.servers.from_state(state["servers"], self.alive("ps"))
