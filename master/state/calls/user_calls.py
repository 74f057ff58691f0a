"""Calls of the user's commands: each is an event of a job, and returns an answer. Pure."""

from __future__ import annotations

from master.state.job.job import Job
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class UserCalls:
    """Answers the commands of users about one job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def scale(self, request: pb.ScaleRequest, now: float) -> pb.ScaleResponse:
        """Set the number of workers, of servers, or both. An invalid number changes neither.

        Raises:
            UsageError: a number is not possible.
        """
        job, said = self._job, []
        if job.lifecycle.ending:
            raise UsageError("the job is over: there is nothing to scale")
        if request.servers:
            job.server_move.require(request.servers)
        if request.max_workers or not request.servers:
            before = job.fleet.workers_wanted
            job.workforce.scale(request)
            said.append(f"workers: {before} before, {request.max_workers} from now on")
        if request.servers:
            before = job.fleet.servers.wanted
            job.server_move.scale(request.servers)
            said.append(f"parameter servers wanted: {before} before, {request.servers} from now on")
        job.lifecycle.note("info", "; ".join(said), now)
        return pb.ScaleResponse(text="; ".join(said))

    def stop(self, request: pb.StopRequest, now: float) -> pb.StopResponse:
        """Stop the job."""
        self._job.stop(request.reason or "asked to stop", now, at_once=request.at_once)
        return pb.StopResponse()

    def get_stacks(self, request: pb.GetStacksRequest, now: float) -> pb.GetStacksResponse:
        """Request the stacks of all workers' threads. The answer has those received so far."""
        for member in self._job.members:
            if member.stacks_asked < request.number:
                member.ask_stacks(request.number)
        return pb.GetStacksResponse(
            workers=[
                pb.WorkerStacks(
                    worker_id=member.id,
                    pid=member.pid,
                    told=member.stacks_told >= request.number,
                    stacks=member.stacks,
                )
                for member in self._job.members
            ]
        )

    def add_events(self, request: pb.AddEventsRequest, now: float) -> pb.AddEventsResponse:
        """Append the events of a command to the log.

        Raises:
            UsageError: an event has an unknown level.
        """
        self._job.lifecycle.log.add_from(request.source, request.events)
        return pb.AddEventsResponse()
