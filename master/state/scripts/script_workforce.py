"""The workers of a training script, started by agents or torchrun. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from master.state.actions import Failure
from master.state.lifecycle import Lifecycle
from master.state.membership import Membership
from master.state.ring import Ring
from master.state.scripts.agents import AgentRecord, Agents, require_same_experiment
from master.state.scripts.rounds import Rounds
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import AGENT, DRAINING, STOPPING, AgentProcess
from master.state.workforce.workforce import (
    Finished,
    StopRequested,
    WorkerGone,
    Workforce,
    WorkforceEvent,
)
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.events import AgentJoined, AgentLost, RoundFormed
from torch_edl.processes.launcher import ProcessExit
from torch_edl.wire import master_pb2 as pb

# Seconds of silence after which an agent or node is not expected to learn of the end.
_LINGER_S = 5.0
# Seconds that the agents of a cluster have to leave by themselves.
_LEAVE_S = 10.0
# Seconds after which a job without any agent, worker or node fails.
_DESERTED_S = 60.0


class _Lasting:
    """Tracks for how long a condition has held without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, holds: bool, limit_s: float, now: float) -> bool:
        """Return whether the condition held at every call of the last ``limit_s`` seconds."""
        if not holds:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            return now - self._since >= limit_s
        return False


class ScriptWorkforce(Workforce):
    """Workers that agents or torchrun start; on a cluster, the fleet starts the agents."""

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        ring: Ring,
        *,
        members: Membership,
        lifecycle: Lifecycle,
    ) -> None:
        super().__init__(fleet, ring)
        assert fleet.agents is not None
        self._pods = fleet.agents
        self.rounds = Rounds()
        self._config = config
        self._members = members
        self._lifecycle = lifecycle
        self._agents = Agents(timeout_s=config.cluster.heartbeat_timeout_s)
        self.torchrun_error = ""
        """Error of the first torchrun agent that gave up; empty if none did. Others may have
        finished."""
        self._places: dict[tuple[str, int], int] = {}
        self._next_id = 0
        self._scaled = False
        self._deserted, self._abandoned, self._waits = _Lasting(), _Lasting(), _Lasting()

    @property
    def closed(self) -> bool:
        return self.rounds.closed

    @property
    def awaits_outcome(self) -> bool:
        return len(self._agents) > 0  # torchrun's agents do not ask

    # ---- workers ----

    def register(self, request: pb.RegisterRequest) -> tuple[int, Sequence[WorkforceEvent]]:
        """Add a worker in the place of the one before. A repeated call returns the same id."""
        if request.worker_id >= 0:
            return request.worker_id, ()
        if self._lifecycle.ending:
            raise UsageError(f"job {self._config.name} is over: no further worker may join")
        events = []
        place, before = self._place_of(request), self.before(request)
        if before >= 0:
            member = self._members.get(before)
            if member is not None and member.pid == request.pid:
                return before, ()
            why = "left" if member is None else "another worker took its place"
            events.append(self._lost(before, why))
        worker, self._next_id = self._next_id, self._next_id + 1
        self._places[place] = worker
        agent = self._agents.get(request.node)
        log = agent.logs.get(request.pid, "") if agent is not None else ""
        self._fleet.adopt(worker, request.pid, log)
        return worker, events

    def before(self, request: pb.RegisterRequest) -> int:
        """Return the last worker in the place of a process that registers; -1 if there was none."""
        return self._places.get(self._place_of(request), -1)

    @staticmethod
    def _place_of(request: pb.RegisterRequest) -> tuple[str, int]:
        return request.node or request.host, request.local_rank

    def declare_lost(self, worker: int, why: str) -> None:
        member = self._members.get(worker)
        agent = self._agents.get(self._node_of(worker))
        if member is not None and agent is not None:
            agent.kill.add(member.pid)  # sent with the answer to its next report
        self._fleet.abandon(worker, why)

    def leave_ring(self, worker: int, now: float, *, finished: bool, ends: bool) -> bool:
        if self._agents.get(self._node_of(worker)) is not None:
            self._ring.leave(worker, now, finished=finished, ends=ends)
        else:
            # No agent reports the exit code.
            self._ring.leave(worker, now, finished=finished)
            self._ring.exited(worker, well=True)
        return True  # the process may run on outside the job

    def _lost(self, worker: int, why: str, *, ended_well: bool | None = None) -> WorkerGone:
        self._fleet.abandon(worker, why)
        return WorkerGone(worker, why, ended_well)

    def _node_of(self, worker: int) -> str:
        return next((node for (node, _), id in self._places.items() if id == worker), "")

    def _workers_of(self, node: str) -> list[int]:
        return [id for (name, _), id in self._places.items() if name == node]

    # ---- agents ----

    def agent_report(self, request: pb.AgentReportRequest, now: float) -> Iterator[WorkforceEvent]:
        """Record an agent's report on its workers; UsageError if it runs something else."""
        require_same_experiment(self._config, request)
        if self._agents.get(request.node) is None:
            yield AgentJoined(node=request.node, host=request.host)
        agent, replaced = self._agents.report(request.node, request.id, now)
        for process in self._fleet.alive(AGENT):
            if isinstance(process, AgentProcess) and process.name == request.node:
                process.report()
        agent.done, agent.address, agent.port = request.done, request.address, request.port
        agent.logs = {report.pid: report.log for report in request.workers}
        agent.begun = agent.begun or bool(request.workers)
        if replaced:
            for worker in self._workers_of(request.node):
                yield self._lost(worker, "its agent was started again")
        if request.error:  # before the ends of workers: the job fails
            yield Failure(request.error, request.traceback)
        for report in request.workers:
            yield from self._worker_report(agent, report)

    def _worker_report(self, agent: AgentRecord, report: pb.AgentWorker) -> Iterator[WorkerGone]:
        if report.exited:
            agent.kill.discard(report.pid)
        for worker in self._workers_of(agent.node):
            process = self._fleet.worker(worker)
            if process is None or process.pid != report.pid:
                continue
            process.log = report.log or process.log
            if report.exited:
                where = " inside its loop" if report.in_loop else ""
                well = report.code == 0 and not report.in_loop
                by_signal = report.code < 0
                exit = ProcessExit(
                    role="worker",
                    id=worker,
                    code=None if by_signal else report.code,
                    signal=-report.code if by_signal else None,
                    why=report.why,
                    own_fault=True if report.why else None,
                )
                lost = self._lost(worker, f"{exit.how}{where}", ended_well=well)
                yield replace(lost, exit=exit, log=process.log)

    def agent_answer(self, node: str) -> pb.AgentReportResponse:
        agent, outcome = self._agents.get(node), self._lifecycle.outcome
        stopping = self._lifecycle.stopping
        assert agent is not None
        agent.knows_end = agent.knows_end or outcome is not None
        rank, first = self._agents.rank(agent), self._agents.first
        return pb.AgentReportResponse(
            kill=sorted(agent.kill),
            node_rank=rank,
            master_addr=first.address if first is not None else "",
            master_port=first.port if first is not None else 0,
            nodes=self._agents.machines,
            workers_wanted=self._fleet.workers_wanted if self._scaled else 0,
            over=outcome is not None,
            error="" if outcome is None else outcome.reason,
            stopping=stopping.reason if stopping is not None else "",
        )

    def ended(self, exit: ProcessExit, now: float) -> Iterator[WorkforceEvent]:
        yield from super().ended(exit, now)
        if exit.role == AGENT:
            node = f"{AGENT}-{exit.id}"
            for worker in self._workers_of(node):
                if worker in self._members:
                    yield self._lost(worker, f"{node} {exit.how}")
            if self._pods.complete and self._failed(node, exit):
                yield Failure(f"{node} {exit.how} before its workers completed the script")
            self._agents.drop(node)

    def _failed(self, node: str, exit: ProcessExit) -> bool:
        """Return whether an agent of a pod failed by itself, while its workers ran the script."""
        agent, process = self._agents.get(node), self._fleet.process(AGENT, exit.id)
        if agent is None or agent.done or not agent.begun:
            return False
        taken = exit.was_taken or exit.was_terminated or exit.was_killed
        asked = process is None or process.state in (DRAINING, STOPPING)
        return exit.code != 0 and not (taken or asked)

    def scale(self, request: pb.ScaleRequest) -> None:
        if self._pods.agents:
            super().scale(request)
            each = self._pods.workers_per_agent
            self._pods.agents = -(-request.max_workers // each)
            self._fleet.workers_wanted = self._pods.agents * each
            return
        machines = self._agents.machines
        if machines != 1:
            raise UsageError(
                f"{machines} agents start the workers of this job, each as many as its "
                "--nproc-per-node says; start or end an agent to change their number"
            )
        super().scale(request)
        self._scaled = True  # agents receive the number

    # ---- torchrun ----

    def node_left(self, node: str) -> Sequence[WorkforceEvent]:
        """Remove the workers of a torchrun agent that has ended them."""
        return [self._lost(worker, "its agent left") for worker in self._workers_of(node)]

    def round_formed(self) -> Sequence[WorkforceEvent]:
        """Declare workers of nodes outside the new round lost; torchrun restarts the others."""
        lost = [
            self._lost(worker, f"{node} is not in the round")
            for (node, _), worker in self._places.items()
            if worker in self._members and node not in self.rounds
        ]
        return [RoundFormed(number=self.rounds.number), *lost]

    # ---- time ----

    def tick(self, now: float, *, newest: str) -> Iterator[WorkforceEvent]:
        yield from super().tick(now, newest=newest)
        if self._lifecycle.outcome is None:
            yield from self._lose_silent_agents(now)
            yield from self._is_abandoned(now, newest)
            yield from self._nothing_begins(now)
        if self._lifecycle.ending:
            self.rounds.closed = True
        elif self.rounds.form(now):
            yield from self.round_formed()

    def _lose_silent_agents(self, now: float) -> Iterator[WorkforceEvent]:
        # A paused agent is not lost while a worker on its machine is registered.
        heard = {node for (node, _), worker in self._places.items() if worker in self._members}
        for agent in self._agents.silent(now):
            if agent.node in heard or not self._lifecycle.counts_silence(agent.seen, now):
                continue
            agent.lost = True
            timeout_s = self._config.cluster.heartbeat_timeout_s
            yield AgentLost(node=agent.node, silent_s=timeout_s)

    def _is_abandoned(self, now: float, newest: str) -> Iterator[Failure]:
        """Fail the job if rank 0 was lost at the end, and no worker replaced it in time."""
        abandoned = self._ring.abandoned and not self._pods.replaces
        if self._abandoned.lasts(abandoned, _DESERTED_S, now):
            yield Failure(
                "rank 0 was lost before its script came to its end, and no worker took its "
                f"place for {_DESERTED_S:g} s: what rank 0 saves may be missing"
                + (f"; the newest checkpoint is {newest}" if newest else "")
            )

    def _nothing_begins(self, now: float) -> Iterator[Failure]:
        """Fail the job if workers wait in vain for enough workers to form the first ring. Workers
        that never ask may have a process group of their own."""
        limit_s, waiting = self._config.cluster.join_timeout_s, self._ring.waiting
        if self._waits.lasts(waiting > 0 and not self._ring.number, limit_s, now):
            least = self._config.cluster.min_workers
            yield Failure(
                f"nothing began within {limit_s:g} s (--rdzv-conf join_timeout): "
                f"{waiting} of at least {least} workers came to the loader of the "
                "script, the others ended before it or are still on their way"
            )

    # ---- the end ----

    def scripts_over(self, now: float) -> bool:
        if len(self._agents):
            return self._agents.done
        # Without agents (torchrun), the workers' own reports decide.
        done = self._ring.finished and not len(self._members)
        return done or (self.rounds.closed and self.rounds.deserted(now))

    def conclusion(
        self, now: float, *, work_open: bool, work_over: bool
    ) -> Finished | StopRequested | Failure | None:
        present = len(self._agents) or len(self._members) or self._pods.replaces
        if self.scripts_over(now):
            if work_open:
                return None  # the final checkpoint is still being written
            if self.torchrun_error and not self._ring.finished:
                return Failure(self.torchrun_error)
            ended = self._ring.finished or self._ring.awaits_exits
            if self._ring.number and not ended:
                return Failure("the processes of the script ended before the end of their loop")
            return Finished(leave_s=_LEAVE_S if self._pods.agents else 0.0)
        if self.rounds.left and not present:
            return StopRequested("all agents of torchrun left")
        if self._deserted.lasts(not present and self.rounds.deserted(now), _DESERTED_S, now):
            return Failure(f"no agent and no worker for {_DESERTED_S:g} s: nobody is left")
        return None

    def has_heard(self, now: float) -> bool:
        outcome = self._lifecycle.outcome
        assert outcome is not None
        if len(self._agents) or outcome.state == "finished":
            return self._agents.over(now, linger_s=_LINGER_S)
        left = not len(self._members) and self.rounds.deserted(now)
        return left or now - self._lifecycle.ended_at >= _LINGER_S

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "agents": self._agents.to_state(),
            "rounds": self.rounds.to_state(),
            "places": [[node, rank, id] for (node, rank), id in self._places.items()],
            "next_id": self._next_id,
            "scaled": self._scaled,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._agents.from_state(state["agents"], now)
        self.rounds.from_state(state["rounds"], now)
        self._places = {(node, rank): id for node, rank, id in state["places"]}
        self._next_id = state["next_id"]
        self._scaled = state["scaled"]
