"""The calls of agents, torchrun's too: each is an event of the job, and its answer. Pure."""

from __future__ import annotations

from master.state.job.job import Job
from master.state.scripts.script_workforce import ScriptWorkforce
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class AgentCalls:
    """Answers agents about one job; None: there is no answer yet, the service asks again.

    All methods raise UsageError if the job is that of a model file, which has none.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def agent_report(self, request: pb.AgentReportRequest, now: float) -> pb.AgentReportResponse:
        """An agent reports what its workers do.

        Raises:
            UsageError: the agent was asked to run something else than this job.
        """
        agents = self._agents()
        self._job.apply_all(agents.agent_report(request, now), now)
        self._job.conclude(now)
        return agents.agent_answer(request.node)

    def join_round(self, request: pb.JoinRoundRequest, now: float) -> pb.JoinRoundResponse | None:
        answer, events = self._agents().join_round(request, now)
        self._job.apply_all(events, now)
        return answer

    def get_round(self, request: pb.GetRoundRequest, now: float) -> pb.GetRoundResponse:
        return self._agents().rounds.look(request.node, request.round, now)

    def leave_round(self, request: pb.LeaveRoundRequest, now: float) -> pb.LeaveRoundResponse:
        self._job.apply_all(self._agents().leave_round(request), now)
        return pb.LeaveRoundResponse()

    def close_rounds(self, request: pb.CloseRoundsRequest, now: float) -> pb.CloseRoundsResponse:
        self._agents().close_rounds(request)
        return pb.CloseRoundsResponse()

    def _agents(self) -> ScriptWorkforce:
        if self._job.agents is None:
            raise UsageError(f"job {self._job.config.name} trains a model file, not a script")
        return self._job.agents
