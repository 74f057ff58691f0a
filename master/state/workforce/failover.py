"""Loss of a parameter server: a successor takes over its shard, or the model is restored from the
newest checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from master.state.actions import Failure
from master.state.workforce.deaths import Gone
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import ServerProcess, Spare
from torch_edl.config import JobConfig
from torch_edl.events import Event, Loss, RoomMade, ServerLost, StartFailed, Way
from torch_edl.processes.launcher import ProcessNotStarted

# Seconds until a started server must be heard; then it counts as not placed. The limit doubles for
# each successor, up to the second value: a busy machine may start processes slowly.
_PLACE_S = 15.0
_LONGEST_PLACE_S = 240.0


@dataclass(frozen=True)
class ModelLost:
    """A part of the model is lost: the whole model has to be restored."""

    why: str
    """What was lost, as a part of a sentence."""
    loss: Loss | None = None
    """The loss of a server that is the cause; None if there is none."""


FailoverEvent = Event | ModelLost | Failure


class Failover:
    """Replaces servers that died or hang.

    With ``--durability journal`` or ``replica`` a successor has everything that its predecessor
    acknowledged: the other servers, the tasks and their leases are not affected.
    """

    def __init__(self, config: JobConfig, fleet: Fleet) -> None:
        self._fleet = fleet
        self._timeout_s = config.cluster.heartbeat_timeout_s
        self._durable = config.durability.mode != "checkpoint"
        self._prefers_workers = config.durability.failover == "worker"
        # Seconds that the next server of a shard has to be heard, for shards whose last one was
        # not.
        self._place_s: dict[int, float] = {}

    def gone(self, gone: Gone, id: int, now: float) -> Sequence[FailoverEvent]:
        """Handle the exit of a server's process."""
        process = self._fleet.process("ps", id)
        assert isinstance(process, ServerProcess)
        return self._lost(process, gone.way, gone.cause)

    def not_restored(self, process: ServerProcess, why: str) -> Sequence[FailoverEvent]:
        """Handle a server that lacks what its predecessor acknowledged."""
        return [ModelLost(f"ps-{process.id} cannot restore shard {process.shard}: {why}")]

    def not_started(self, event: ProcessNotStarted, now: float) -> Sequence[FailoverEvent]:
        """Handle a process that did not start. Returns a Failure unless the job can continue
        without the process for a while, or can start it now."""
        process = self._fleet.process(event.role, event.id)
        assert process is not None
        if not event.why:
            if isinstance(process, ServerProcess) and process in self._fleet.servers:
                self._fleet.servers.vacate(process)
            return []
        if isinstance(process, ServerProcess):
            if self._durable and not self._fleet.servers.is_first(process):
                return self._lost(process, "unstarted", event.why)
        elif isinstance(process, Spare) or self._fleet.alive("worker"):
            return [StartFailed(process=process.name, why=event.why)]
        return [Failure(f"{process.name} cannot be started: {event.why}")]

    def tick(
        self, now: float, counts_silence: Callable[[float, float], bool]
    ) -> Sequence[FailoverEvent]:
        """Declare servers lost that do not begin to run, and silent ones if
        :meth:`.Lifecycle.counts_silence` is true for them."""
        events: list[FailoverEvent] = []
        servers = self._fleet.servers
        for process, s in servers.silent(now, self._timeout_s):
            if not counts_silence(process.last_sign, now):
                continue
            events += self._lost(process, "silent", f"no heartbeat for {s:g} s", silent_s=s)
            if not self._durable:  # all servers are replaced
                return events
        for process in servers:
            if process.heard_at is not None:
                self._place_s.pop(process.shard, None)
        for process in servers.not_placed(now, lambda shard: self._place_s.get(shard, _PLACE_S)):
            # A server that no machine has room for holds no data, and all workers wait for it.
            if not (self._durable or process.unplaced):
                continue
            if process.slot >= 0 or self._fleet.slot_for_server() is not None:
                waited_s = self._place_s.get(process.shard, _PLACE_S)
                self._place_s[process.shard] = min(2 * waited_s, _LONGEST_PLACE_S)
                events += self._lost(process, "late", f"{waited_s:g} s after its start")
        return events

    def _lost(
        self,
        process: ServerProcess,
        way: Way,
        cause: str,
        *,
        silent_s: float = 0.0,
    ) -> Sequence[FailoverEvent]:
        fleet, shard = self._fleet, process.shard
        lost = ServerLost(
            process=process.name, way=way, cause=cause, silent_s=silent_s, shard=shard
        )
        placed = lost.disrupts
        if not self._durable and placed:
            return [ModelLost(lost.what, lost)]
        if fleet.servers.is_alone(shard):
            why = f"{lost.what}, before another server had a new copy of shard {shard}"
            return [ModelLost(why, lost if placed else None)]
        events: list[FailoverEvent] = [lost]
        # If one way to get a server failed, the other is tried: a new pod, or that of a worker.
        prefers_slot = self._prefers_workers and not fleet.has_idle_pod(shard)
        if prefers_slot if placed else process.slot < 0:
            room = fleet.slot_for_server()
            if room is not None:
                fleet.make_room(room, shard)
                events.append(RoomMade(process=room.name))
        fleet.server_lost(process)
        return events
