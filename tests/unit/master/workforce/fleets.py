"""A fleet whose processes a test ends, registers and places."""

from __future__ import annotations

from typing import Any

from master.state.actions import Start, Stop
from master.state.workforce.fleet import Fleet
from master.state.workforce.servers import ServerCommand
from torch_edl.processes.launcher import ProcessExit, ProcessRuns, ProcessWaits

NO_ROOM = "no node has room: 0/3 nodes are available: 3 Insufficient cpu"


class Processes(Fleet):
    """Records nothing of its own; its verbs are shorter than the events that they stand for."""

    def __init__(
        self, workers: int = 2, servers: int = 2, *, strategy: str = "", **options: Any
    ) -> None:
        command = ServerCommand(job="job")
        super().__init__(command, workers=workers, servers=servers, **options)
        if strategy:
            self.decide(strategy, restore="")

    def did(self, now: float) -> list[str]:
        """Return the names of what is started and stopped now."""
        return [
            f"start {a.spec.name}" if isinstance(a, Start) else f"stop {a.role}-{a.id}"
            for a in self.plan(now)
            if isinstance(a, Start | Stop)
        ]

    def pods(self, now: float) -> list[tuple[int, int]]:
        """Return (number, pod) of each worker that is started now."""
        return [(a.spec.id, a.spec.pod) for a in self.plan(now) if isinstance(a, Start)]

    def ends(self, role: str, id: int, now: float = 1.0, **how: Any) -> Any:
        """End a process. Returns the event that follows."""
        return self.exited(ProcessExit(role=role, id=id, **how), now, log="/logs/x")

    def taken(self, role: str, id: int, now: float, why: str = "preempted") -> Any:
        return self.ends(role, id, now, code=143, why=why, own_fault=False)

    def waits(
        self, role: str, id: int, now: float, why: str = NO_ROOM, *, placed: bool = False
    ) -> None:
        event = ProcessWaits(role=role, id=id, why=why, fix="ask for less", placed=placed)
        self.process(role, id).wait(event, now)

    def runs(self, role: str, id: int, now: float, *, registers: bool = True) -> None:
        self.process(role, id).run(ProcessRuns(role=role, id=id, node="n1"), now)
        if registers and role == "worker":
            assert self.registered(id)


def running(workers: int = 2, servers: int = 2) -> Processes:
    """Return a fleet of the strategy ps in which everything has registered."""
    f = Processes(workers, servers, strategy="ps")
    f.plan(0.0)
    for shard in range(servers):
        assert f.servers.registered(shard, shard + 1, f"host:{shard}", 0.0)
    for id in range(workers):
        assert f.registered(id)
    return f
