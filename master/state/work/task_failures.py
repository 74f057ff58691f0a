"""Failures of the user's code in tasks: each cause is logged once, and a task may fail a few times.
Pure."""

from __future__ import annotations

from master.state.actions import Failure, Note
from torch_edl.wire import master_pb2 as pb

# Upper bound on the failure causes that are remembered, to log each cause once.
_MOST_CAUSES = 100


class TaskFailures:
    """The causes of failures that were logged.

    Args:
        limit: failures of one task after which the job fails.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._causes: set[str] = set()

    def judge(self, request: pb.FailTaskRequest, count: int) -> Note | Failure | None:
        """Return the event that follows a failure; None if the same cause was logged before.

        Args:
            count: number of failures of the task.
        """
        if request.fatal or count >= self._limit:
            tries = f"; the task was tried {count} times" if count > 1 else ""
            return Failure(request.error + tries, request.traceback)
        cause = request.error.partition(" (record")[0]
        if cause in self._causes:
            return None
        self._causes = {*self._causes, cause} if len(self._causes) < _MOST_CAUSES else {cause}
        text = (
            f"worker-{request.worker_id}: {request.error}; failure {count} of {self._limit} of "
            "this task, which is tried again"
        )
        return Note("warning", text, request.traceback)
