"""The call of spares: an event of the job, and its answer. Pure."""

from __future__ import annotations

from master.state.job.job import Job
from master.state.workforce.processes import EXITED, STOPPING
from torch_edl.wire import master_pb2 as pb


class SpareCalls:
    """Answers spares of one job; None: there is no answer yet, the service asks again."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def await_place(
        self, request: pb.AwaitPlaceRequest, now: float
    ) -> pb.AwaitPlaceResponse | None:
        """A spare asks for the place of a worker; None: all workers are there."""
        job = self._job
        process = job.fleet.process("worker", request.worker_id)
        if duty := job.fleet.duties.of(request.worker_id):
            return pb.AwaitPlaceResponse(server_args=duty)
        if process is None or process.state in (STOPPING, EXITED) or job.lifecycle.ending:
            return pb.AwaitPlaceResponse(leave=True)
        if not process.spare:
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
        # The model file has changed, perhaps. That is no matter of the workers that train.
        spares.given_up = True
        text = f"{request.error}; a spare found this, the workers continue without spares"
        self._job.lifecycle.note("warning", text, now, request.traceback)
