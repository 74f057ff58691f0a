"""The calls of scripts on servers that wait for each other: events of the job, and their answers.
Pure."""

from __future__ import annotations

from master.state.job.job import Job
from master.state.work.data_identity import MOST_RECORDS
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class MeetingCalls:
    """Answers calls about one job; None: there is no answer yet, the service asks again."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def begin_pass(self, request: pb.BeginPassRequest, now: float) -> pb.BeginPassResponse | None:
        """A script begins a loop over a loader.

        Raises:
            UsageError: there are more records in so many epochs than are counted.
        """
        job = self._job
        if job.tasks.records_of(request.epochs) > MOST_RECORDS:
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
        """Adds the tasks of further epochs, if a script loops over the data more often than it has
        announced; False: what is trained is saved first."""
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
        """A script comes to a value that all scripts compute together."""
        if self._leaves(request.worker_id):
            return pb.MeetResponse(leave=True)
        return self._job.meetings.meet(request, over=self._is_over(request.passes))

    def _is_over(self, number: int) -> bool:
        """Whether the training is beyond a loop over a loader."""
        epochs = self._job.meetings.epochs.get(number)
        return epochs is not None and self._job.tasks.is_beyond(epochs)

    def _leaves(self, worker: int) -> bool:
        member = self._job.members.get(worker)
        return member is None or member.draining or self._job.lifecycle.ending
