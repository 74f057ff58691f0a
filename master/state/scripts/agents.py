"""Who starts workers on a machine: the agents of a job of kind ``script``. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch_edl.config import Experiment, JobConfig
from torch_edl.wire import master_pb2 as pb


@dataclass
class AgentRecord:
    """One agent as it last reported."""

    node: str
    """Its name; unique in the job."""
    pid: int
    seen: float
    done: bool = False
    """All its workers ended well, or the agent leaves."""
    address: str = ""
    """Of its machine, for the others."""
    port: int = 0
    """Free there, for a process group that the script makes itself."""
    rank: int = -1
    """Its number among the machines; that of one which has not begun may change."""
    begun: bool = False
    """The agent has started workers. An agent whose rank is beyond the machines of a job waits."""
    knows_end: bool = False
    """The agent has heard that the job is over."""
    logs: dict[int, str] = field(default_factory=dict)
    """Pid of each of its workers to its log."""
    kill: set[int] = field(default_factory=set)
    """Pids of its workers that were declared lost."""


class Agents:
    """The agents that have reported and are not lost, in the order of their arrival."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._agents: dict[str, AgentRecord] = {}
        self._lost: dict[str, AgentRecord] = {}

    def __iter__(self) -> Iterator[AgentRecord]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def get(self, node: str) -> AgentRecord | None:
        """The agent of that name, also one that was lost: it may come back."""
        return self._agents.get(node) or self._lost.get(node)

    def rank(self, agent: AgentRecord) -> int:
        """Its number among the machines: the least that no other has, until it has begun."""
        if agent.rank < 0 or not agent.begun:
            taken = {other.rank for other in self if other is not agent and not other.done}
            agent.rank = next(n for n in itertools.count() if n not in taken)
        return agent.rank

    @property
    def first(self) -> AgentRecord | None:
        """The one whose workers have the ranks from 0 on."""
        return next((agent for agent in self if agent.rank == 0 and not agent.done), None)

    @property
    def machines(self) -> int:
        """Agents that are not done."""
        return sum(not agent.done for agent in self)

    @property
    def done(self) -> bool:
        """Agents have begun, and all that did are done; others only wait for a place."""
        begun = [agent for agent in self if agent.begun]
        return bool(begun) and all(agent.done for agent in begun)

    def over(self, now: float, *, linger_s: float) -> bool:
        """Every agent heard that the job is over, or is silent."""
        return all(agent.knows_end or now - agent.seen >= linger_s for agent in self)

    def report(self, node: str, pid: int, now: float) -> tuple[AgentRecord, bool]:
        """An agent lives. Returns it, and whether another one of that name came before it."""
        agent = self._agents.get(node)
        back = self._lost.pop(node, None)
        replaces = any(a is not None and a.pid != pid for a in (agent, back))
        if agent is None or replaces:
            new = AgentRecord(node, pid, now, rank=-1 if agent is None else agent.rank)
            self._agents[node] = agent = back if back is not None and not replaces else new
        agent.seen = now
        return agent, replaces

    def drop(self, node: str) -> None:
        """The process of an agent has ended; one that is done still counts as such."""
        agent = self._agents.get(node)
        if agent is not None and not agent.done:
            del self._agents[node]

    def silent(self, now: float, *, but: Container[str] = ()) -> Sequence[AgentRecord]:
        """Takes out the agents whose last report is a timeout ago or more, and returns them.

        Args:
            but: names of agents that stay.
        """
        lost = [
            agent
            for agent in self
            if not (agent.done or agent.knows_end or agent.node in but)
            and now - agent.seen >= self._timeout_s
        ]
        for agent in lost:
            self._lost[agent.node] = self._agents.pop(agent.node)
        return lost

    # ---- a restart of the master ----

    def to_state(self) -> list[dict[str, Any]]:
        """What a restarted master needs, as JSON can say it."""
        kept = ("node", "pid", "done", "address", "port", "rank", "begun")
        return [{n: getattr(a, n) for n in kept} | {"kill": sorted(a.kill)} for a in self]

    def from_state(self, state: Sequence[dict[str, Any]], now: float) -> None:
        """The inverse of :meth:`to_state`; every agent counts as heard now."""
        for saved in state:
            agent = AgentRecord(seen=now, **{**saved, "kill": set(saved["kill"])})
            self._agents[agent.node] = agent


def require_same_experiment(config: JobConfig, request: pb.AgentReportRequest) -> None:
    """Refuses an agent that was asked to run something else than the job does.

    Raises:
        UsageError: it was; names what differs, with both values.
    """
    if config.experiment is None or not request.HasField("experiment"):
        return
    given = {each.name: getattr(request.experiment, each.name) for each in fields(Experiment)}
    asked = Experiment(**given | {"args": tuple(given["args"])})
    config.experiment.require(asked, config.name)
