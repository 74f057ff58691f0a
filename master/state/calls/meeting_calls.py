"""Calls of scripts on servers that synchronize: each is an event of a job, and returns an answer.
Pure."""

from __future__ import annotations

from master.state.job.job import Job
from master.state.work.data_identity import MOST_RECORDS
from master.state.work.epochs import is_beyond, records_of
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class MeetingCalls:
    """Answers the scripts of one job. None means no answer yet: the service repeats the call."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def begin_pass(self, request: pb.BeginPassRequest, now: float) -> pb.BeginPassResponse | None:
        """Begin a script's loop over a loader.

        Raises:
            UsageError: the epochs have more records than the job can count.
        """
        job = self._job
        if records_of(job.tasks.main, request.epochs) > MOST_RECORDS:
            raise UsageError(
                f"job.loader: {request.epochs:,} epochs; at most {MOST_RECORDS:,} records count"
            )
        if self._leaves(request.worker_id):
            return pb.BeginPassResponse(leave=True)
        if not job.meetings.begin_pass(request.worker_id, request.number, request.epochs):
            return None
        if not self._extend(request.epochs):
            return None
        return pb.BeginPassResponse(begun=True, over=self._is_over(request.number))

    def _extend(self, epochs: int) -> bool:
        """Add the tasks of further epochs if a script loops more often than announced. Returns
        False while the final checkpoint of the earlier epochs is being written."""
        job, main = self._job, self._job.tasks.main
        if main is None or epochs <= main.space.epochs:
            return True
        if job.tasks.trained and not job.milestones.settled:
            return False
        assert isinstance(main.space, TaskSpace)
        main.space.extend(epochs)
        job.milestones.settled = False
        job.checkpoints.continued()
        job.lifecycle.continued()
        return True

    def meet(self, request: pb.MeetRequest, now: float) -> pb.MeetResponse | None:
        """Synchronize a script with the others on a value that they compute together."""
        if self._leaves(request.worker_id):
            return pb.MeetResponse(leave=True)
        return self._job.meetings.meet(request, over=self._is_over(request.passes))

    def _is_over(self, number: int) -> bool:
        """Return whether records of a later loop are done."""
        epochs = self._job.meetings.epochs.get(number)
        return epochs is not None and is_beyond(self._job.tasks.main, epochs)

    def _leaves(self, worker: int) -> bool:
        member = self._job.members.get(worker)
        return member is None or member.draining or self._job.lifecycle.ending
