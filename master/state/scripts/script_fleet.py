"""The processes of a script's job: servers and, on a cluster, agents. Pure.

On machines, users start agents (``torch-edl run --nnodes ...``). On a cluster the master requests
one pod per agent, which starts all workers of the pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from master.state.actions import Action, Failure, Note, Stop
from master.state.workforce.deaths import Gone
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import (
    AGENT,
    DRAINING,
    EXITED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    AgentProcess,
    Process,
    WorkerProcess,
)
from master.state.workforce.servers import ServerCommand
from master.state.workforce.starts import free_slots
from torch_edl.processes.launcher import ProcessExit

_MODULE = "torch_edl.cli"


class ScriptFleet(Fleet):
    """The fleet of a script.

    Args:
        agents: number of agents to keep running; 0 if users start them.
        workers_per_agent: number of workers that each agent starts.
        agent_args: command-line arguments of an agent.
        agent_grace_s: seconds that a leaving agent has before it is killed.
        options: options of :class:`Fleet`.
    """

    external = True

    def __init__(
        self,
        server_command: ServerCommand,
        *,
        agents: int = 0,
        workers_per_agent: int = 1,
        agent_args: Sequence[str] = (),
        agent_grace_s: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__(server_command, **options)
        self.agents_wanted = agents
        """Number of agents to keep running; 0 if users start them."""
        self._workers_per_agent = workers_per_agent
        self._agent_args, self._agent_grace_s = agent_args, agent_grace_s
        self._complete = False  # an agent exited with code 0

    @property
    def replaces(self) -> bool:
        """True if lost agents are replaced."""
        return bool(self.agents_wanted) and not self._complete

    def scale_agents(self, workers: int) -> None:
        """Set the number of agents so that they start at least ``workers`` workers."""
        self.agents_wanted = -(-workers // self._workers_per_agent)
        self.workers_wanted = self.agents_wanted * self._workers_per_agent

    def agent_heard(self, node: str) -> None:
        process = self.process(AGENT, _id_of(node))
        if isinstance(process, AgentProcess):
            process.report()

    def adopt(self, id: int, pid: int, log: str = "") -> None:
        """Add a worker that an agent started."""
        self._processes.add(WorkerProcess(id, state=RUNNING, pid=pid, log=log))

    def abandon(self, worker: int, exit: str) -> None:
        """Mark a worker of an agent as exited, after its exit or its loss."""
        process = self._processes.get("worker", worker)
        if process is not None and process.state != EXITED:
            process.exits(exit)

    def launched(self) -> list[Process]:
        return [*self.alive("ps"), *self.alive(AGENT)]

    def exited(self, exit: ProcessExit, now: float, *, log: str) -> Gone | Failure | Note | None:
        if exit.role != AGENT:
            return super().exited(exit, now, log=log)
        process = self._processes[AGENT, exit.id]
        assert isinstance(process, AgentProcess)
        was = process.ended(exit, over=self._over)
        text = f"{process.name} {exit.how}"
        self._complete |= exit.code == 0 and not exit.was_taken
        asked = exit.was_terminated or was in (DRAINING, STOPPING)
        if self._over or asked or self._complete:
            return Gone(text, expected=True)
        return self._deaths.of_worker(exit, text, f"{text}; its log is {log}", now, process=process)

    def _fit(self, now: float) -> Sequence[Action]:
        agents = [each for each in self.alive(AGENT) if isinstance(each, AgentProcess)]
        staying = [each for each in agents if each.state in (PENDING, STARTING, RUNNING)]
        for process in self.starts.beyond(self.agents_wanted, staying):
            process.retire(now, by=now)
        # Leaving agents count until they exit, so the maximum is never exceeded.
        missing = self.agents_wanted - len(agents) if self.replaces else 0
        missing *= now >= self._deaths.start_after
        starts = []
        for slot in free_slots(max(0, missing), agents):
            agent, start = self.starts.make(AgentProcess, _MODULE, self._agent_args, now, slot=slot)
            self._processes.add(agent)
            starts.append(start)
        return starts

    def _stop(self, process: Process) -> Stop:
        if process.role != AGENT or process.lost:
            return super()._stop(process)
        process.enter(STOPPING)
        return Stop(process.role, process.id, self._agent_grace_s)

    def to_state(self) -> dict[str, Any]:
        agents = {"wanted": self.agents_wanted, "complete": self._complete}
        return {**super().to_state(), "agents": agents}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        super().from_state(state, now)
        self.agents_wanted = state["agents"]["wanted"]
        self._complete = state["agents"]["complete"]


def node_of(agent: int) -> str:
    """Return the name under which the agent of a pod reports."""
    return f"{AGENT}-{agent}"


def _id_of(node: str) -> int:
    number = node.removeprefix(f"{AGENT}-")
    return int(number) if number.isdecimal() else -1
