"""Agents, which start the workers of a script on their machines. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch_edl.config import Experiment, JobConfig
from torch_edl.wire import master_pb2 as pb


@dataclass
class AgentRecord:
    """One agent as it last reported."""

    node: str
    """Name of the agent, unique in the job."""
    id: str
    """Id of the process of the agent."""
    seen: float
    """Time of the last report."""
    done: bool = False
    """True if all its workers exited with code 0, or the agent is leaving."""
    address: str = ""
    """Address at which other machines reach the agent's machine."""
    port: int = 0
    """Free port on its machine for the script's own process group; 0 before the first report."""
    rank: int = -1
    """Number among the machines; -1 before one is assigned. Changes until the agent has begun."""
    begun: bool = False
    """True once the agent has started workers. The agent of a machine that the job does not need
    never does."""
    knows_end: bool = False
    """True once the agent was told that the job is over."""
    logs: dict[int, str] = field(default_factory=dict)
    """Path of the log, by pid of the worker."""
    kill: set[int] = field(default_factory=set)
    """Pids of its workers that were declared lost and are to be killed."""
    lost: bool = False
    """True if the agent was declared lost and has not reported since."""


class Agents:
    """The agents that have reported and are not lost, in the order of arrival."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._agents: dict[str, AgentRecord] = {}

    def __iter__(self) -> Iterator[AgentRecord]:
        return (agent for agent in self._agents.values() if not agent.lost)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, node: str) -> AgentRecord | None:
        """Return the agent of this name, even if it was lost; None if it never reported."""
        return self._agents.get(node)

    def rank(self, agent: AgentRecord) -> int:
        """Return the agent's number among the machines: the lowest free one until it has begun."""
        if agent.rank < 0 or not agent.begun:
            taken = {other.rank for other in self if other is not agent and not other.done}
            agent.rank = next(n for n in itertools.count() if n not in taken)
        return agent.rank

    @property
    def first(self) -> AgentRecord | None:
        """The agent with rank 0 that is not done; None if there is none."""
        return next((agent for agent in self if agent.rank == 0 and not agent.done), None)

    @property
    def machines(self) -> int:
        """Number of agents that are not done."""
        return sum(not agent.done for agent in self)

    @property
    def done(self) -> bool:
        """True if at least one agent has begun, and all that have are done."""
        begun = [agent for agent in self if agent.begun]
        return bool(begun) and all(agent.done for agent in begun)

    def over(self, now: float, *, linger_s: float) -> bool:
        """Return whether every agent was told of the job's end, or is silent for ``linger_s``."""
        return all(agent.knows_end or now - agent.seen >= linger_s for agent in self)

    def report(self, node: str, id: str, now: float) -> tuple[AgentRecord, bool]:
        """Record a report of an agent. Returns it, and whether it replaces another process."""
        agent = self._agents.get(node)
        replaces = agent is not None and agent.id != id
        if agent is None or replaces:
            rank = -1 if agent is None or agent.lost else agent.rank
            self._agents[node] = agent = AgentRecord(node, id, now, rank=rank)
        agent.seen, agent.lost = now, False
        return agent, replaces

    def drop(self, node: str) -> None:
        """Remove an agent whose process has ended, unless it is done."""
        agent = self._agents.get(node)
        if agent is not None and not agent.done and not agent.lost:
            del self._agents[node]

    def silent(self, now: float) -> Sequence[AgentRecord]:
        """Return the agents whose last report is at least one timeout old."""
        return [
            agent
            for agent in self
            if not (agent.done or agent.knows_end) and now - agent.seen >= self._timeout_s
        ]

    # ---- a restart of the master ----

    def to_state(self) -> list[dict[str, Any]]:
        kept = ("node", "id", "done", "address", "port", "rank", "begun")
        return [{n: getattr(a, n) for n in kept} | {"kill": sorted(a.kill)} for a in self]

    def from_state(self, state: Sequence[dict[str, Any]], now: float) -> None:
        for saved in state:
            agent = AgentRecord(seen=now, **{**saved, "kill": set(saved["kill"])})
            self._agents[agent.node] = agent


def require_same_experiment(
    config: JobConfig, request: pb.AgentReportRequest | pb.NodeReportRequest
) -> None:
    """Raise UsageError if an agent or a node was started for another file or with other
    arguments."""
    if config.experiment is None or not request.HasField("experiment"):
        return
    given = {each.name: getattr(request.experiment, each.name) for each in fields(Experiment)}
    asked = Experiment(**given | {"args": tuple(given["args"])})
    config.experiment.require(asked, config.name)
