"""What the loss of a parameter server means: another one takes over its shard, or the model is
restored from the newest checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from master.state.actions import Note
from master.state.fleet import Fleet
from master.state.processes import Process
from torch_edl.config import JobConfig


@dataclass(frozen=True)
class ModelLost:
    """A part of the model is lost: the whole model is to be restored."""

    text: str


FailoverEvent = Note | ModelLost


class Failover:
    """Replaces servers that died or hang.

    With ``--durability journal`` or ``replica`` a successor has everything that its predecessor
    acknowledged: the other servers, the tasks and their leases are untouched.
    """

    def __init__(self, config: JobConfig, fleet: Fleet) -> None:
        self._fleet = fleet
        self._timeout_s = config.cluster.heartbeat_timeout_s
        self._durable = config.durability.mode != "checkpoint"

    def gone(self, id: int, text: str) -> Sequence[FailoverEvent]:
        """The process of a server ended."""
        process = self._fleet.process("ps", id)
        assert process is not None
        return self._lost(process, text)

    def not_restored(self, process: Process, why: str) -> Sequence[FailoverEvent]:
        """A server does not have what its predecessor acknowledged."""
        return [ModelLost(f"ps-{process.id} cannot restore shard {process.shard}: {why}")]

    def tick(self, now: float) -> Sequence[FailoverEvent]:
        """Declares servers lost that are silent."""
        events: list[FailoverEvent] = []
        for process, s in self._fleet.servers.silent(now, self._timeout_s):
            events += self._lost(
                process, f"ps-{process.id} declared lost: no heartbeat for {s:g} s"
            )
            if not self._durable:  # all servers are replaced
                break
        return events

    def _lost(self, process: Process, text: str) -> Sequence[FailoverEvent]:
        if not self._durable:
            return [ModelLost(text)]
        self._fleet.server_lost(process)
        then = f"another server takes over shard {process.shard}, and nothing is lost"
        return [Note("warning", f"{text}; {then}")]
