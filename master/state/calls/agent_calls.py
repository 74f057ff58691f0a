"""Calls of agents, including torchrun's: each is an event of a job, and returns an answer. Pure."""

from __future__ import annotations

from master.state.job.job import Job
from master.state.scripts.script_workforce import ScriptWorkforce
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class AgentCalls:
    """Answers the agents of one job. None means no answer yet: the service repeats the call.

    All methods raise UsageError if the job trains a model file: such a job has no agents.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def agent_report(self, request: pb.AgentReportRequest, now: float) -> pb.AgentReportResponse:
        """Record an agent's report on its workers.

        Raises:
            UsageError: the agent was started for a different script or with other arguments.
        """
        agents = self._agents()
        self._job.apply_all(agents.agent_report(request, now), now)
        self._job.conclude(now)
        return agents.agent_answer(request.node)

    def join_round(self, request: pb.JoinRoundRequest, now: float) -> pb.JoinRoundResponse | None:
        """Request a place in the next round for a torchrun agent."""
        answer, events = self._agents().join_round(request, now)
        self._job.apply_all(events, now)
        return answer

    def get_round(self, request: pb.GetRoundRequest, now: float) -> pb.GetRoundResponse:
        """Return the state of an agent's round."""
        return self._agents().rounds.look(request.node, request.round, now)

    def leave_round(self, request: pb.LeaveRoundRequest, now: float) -> pb.LeaveRoundResponse:
        """Remove a torchrun agent that leaves."""
        self._job.apply_all(self._agents().leave_round(request), now)
        return pb.LeaveRoundResponse()

    def close_rounds(self, request: pb.CloseRoundsRequest, now: float) -> pb.CloseRoundsResponse:
        """Record that a torchrun agent reports the end of the job."""
        self._agents().close_rounds(request)
        return pb.CloseRoundsResponse()

    def _agents(self) -> ScriptWorkforce:
        if self._job.agents is None:
            raise UsageError(f"job {self._job.config.name} trains a model file, not a script")
        return self._job.agents
