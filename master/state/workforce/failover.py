"""Loss of a parameter server: a successor takes over its shard, or the model is restored from the
newest checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from master.state.actions import Failure, Note
from master.state.lifecycle import Lifecycle
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import ServerProcess, Spare
from torch_edl.config import JobConfig
from torch_edl.processes.launcher import ProcessNotStarted

# Seconds until a started server must be heard; then it counts as not placed. The limit doubles for
# each successor, up to the second value: a busy machine may start processes slowly.
_PLACE_S = 15.0
_LONGEST_PLACE_S = 240.0


@dataclass(frozen=True)
class ModelLost:
    """A part of the model is lost: the whole model has to be restored."""

    text: str


FailoverEvent = Note | ModelLost | Failure


class Failover:
    """Replaces servers that died or hang.

    With ``--durability journal`` or ``replica`` a successor has everything that its predecessor
    acknowledged: the other servers, the tasks and their leases are not affected.
    """

    def __init__(self, config: JobConfig, fleet: Fleet, lifecycle: Lifecycle) -> None:
        self._fleet = fleet
        self._lifecycle = lifecycle
        self._timeout_s = config.cluster.heartbeat_timeout_s
        self._durable = config.durability.mode != "checkpoint"
        self._prefers_workers = config.durability.failover == "worker"
        # Seconds that the next server of a shard has to be heard, for shards whose last one was
        # not.
        self._place_s: dict[int, float] = {}

    def gone(self, id: int, text: str, now: float) -> Sequence[FailoverEvent]:
        """Handle the exit of a server's process."""
        process = self._fleet.process("ps", id)
        assert isinstance(process, ServerProcess)
        return self._lost(process, text, now)

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
        text = f"{process.name} cannot be started: {event.why}"
        if isinstance(process, ServerProcess):
            if self._durable and not self._fleet.servers.is_first(process):
                return self._lost(process, text, now, placed=False)
        elif isinstance(process, Spare) or self._fleet.alive("worker"):
            return [Note("warning", f"{text}; the next attempt follows")]
        return [Failure(text)]

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
            text = f"ps-{process.id} declared lost: no heartbeat for {s:g} s"
            events += self._lost(process, text, now, silent_s=s)
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
                text = f"ps-{process.id} does not run {waited_s:g} s after its start"
                events += self._lost(process, text, now, placed=False)
        return events

    def _lost(
        self,
        process: ServerProcess,
        text: str,
        now: float,
        *,
        placed: bool = True,
        silent_s: float = 0.0,
    ) -> Sequence[FailoverEvent]:
        if placed:
            self._lifecycle.disrupted(now, lost="ps", silent_s=silent_s)
        if not self._durable and placed:
            return [ModelLost(text)]
        fleet, shard = self._fleet, process.shard
        if fleet.servers.is_alone(shard):
            return [ModelLost(f"{text}, before another server had a new copy of shard {shard}")]
        text += f"; another server takes over shard {shard}, and nothing is lost"
        events: list[FailoverEvent] = [Note("warning", text)]
        # If one way to get a server failed, the other is tried: a new pod, or that of a worker.
        prefers_slot = self._prefers_workers and not fleet.has_idle_pod(shard)
        if prefers_slot if placed else process.slot < 0:
            room = fleet.slot_for_server()
            if room is not None:
                fleet.make_room(room, shard)
                events.append(Note("info", f"{room.name} makes room for a server"))
        fleet.server_lost(process)
        return events
