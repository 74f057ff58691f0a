"""The call of spares: an event of a job, and its answer. Pure."""

from __future__ import annotations

from master.state.job.job import Job
from master.state.workforce.processes import EXITED, STOPPING, Spare
from torch_edl.wire import master_pb2 as pb


class SpareCalls:
    """Answers the spares of one job. None means no answer yet: the service repeats the call."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def await_place(
        self, request: pb.AwaitPlaceRequest, now: float
    ) -> pb.AwaitPlaceResponse | None:
        """Assign a worker slot or a server to a spare; None while neither is free."""
        job = self._job
        process = job.fleet.process("worker", request.worker_id)
        if duty := job.fleet.role_changes.of(request.worker_id):
            return pb.AwaitPlaceResponse(server_args=duty)
        if process is None or process.state in (STOPPING, EXITED) or job.lifecycle.ending:
            return pb.AwaitPlaceResponse(leave=True)
        if not isinstance(process, Spare):
            return pb.AwaitPlaceResponse(place=True)
        if request.error:
            self._failed(request, now)
            return pb.AwaitPlaceResponse(leave=True)
        job.fleet.spares.heard(process, now, warm=request.warm)
        if not request.warm:
            return pb.AwaitPlaceResponse(config_json=job.config.to_json())
        return None

    def _failed(self, request: pb.AwaitPlaceRequest, now: float) -> None:
        spares = self._job.fleet.spares
        if spares.given_up:
            return
        # The model file may have changed; this does not affect the running workers.
        spares.given_up = True
        text = f"{request.error}; a spare found this, the workers continue without spares"
        self._job.lifecycle.note("warning", text, now, request.traceback)
