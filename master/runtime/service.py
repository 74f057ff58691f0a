"""The job behind gRPC: one lock, one clock, and calls that wait for something to change."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import grpc

from master.runtime.requests import check
from master.state.actions import JobEvent
from master.state.job import Job
from master.state.scripts import ScriptJob
from master.state.status import LogPath, describe
from master.state.workers import Workers
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.server import Handler, serve

log = logging.getLogger(__name__)

_LEASE_WAIT_S = 2.0
_MODEL_WAIT_S = 5.0
_RING_WAIT_S = 2.0
_ANY = ("0.0.0.0", "[::]", "*")
_ENDED = ("finished", "failed", "stopped")

Clock = Callable[[], float]


class Service:
    """Answers the RPCs of the Master service.

    ``changed`` is the lock of the job; whoever changes the job under it notifies.
    """

    def __init__(self, job: Job, *, clock: Clock, log_path: LogPath) -> None:
        self.job = job
        self._workers = Workers(job)
        self.changed = threading.Condition()
        self.end_seen = threading.Event()
        """Somebody has fetched the final state."""
        self.address = ""
        """Where a process of this machine finds it."""
        self.listens = ""
        self.keep: Callable[[], None] = lambda: None
        """Writes what a restarted master must know; called with the lock, before an answer that
        others rely on leaves."""
        self._clock = clock
        self._log_path = log_path
        self._server: grpc.Server | None = None

    def listen(self, token: str, address: str = "127.0.0.1:0") -> str:
        """Starts to answer, and returns the address.

        Args:
            address: ``host:port``; port 0 takes a free one.

        Raises:
            UsageError: it cannot be had.
        """
        # Calls that wait hold a thread each, and `torch-edl scale` may add workers.
        threads = max(64, 4 * self.job.config.cluster.max_workers)
        self._server, port = serve(
            pb.DESCRIPTOR.services_by_name["Master"],
            self.handlers(),
            address=address,
            token=token,
            threads=threads,
        )
        host = address.rpartition(":")[0]
        self.listens = f"{host}:{port}"
        self.address = f"{'127.0.0.1' if host in _ANY else host}:{port}"
        return self.address

    def handlers(self) -> dict[str, Handler]:
        """Method name to handler."""
        handlers: dict[str, Handler] = {
            "Register": self._changing(self._workers.register),
            "RegisterServer": self._register_server,
            "ReportModel": self._changing(self.job.report_model),
            "ReportData": self._changing(self._of_script("report_data")),
            "ReportFailure": self._changing(self.job.report_failure),
            "WaitUntilReady": self._wait_until_ready,
            "Lease": self._lease,
            "CompleteTask": self._changing(self._workers.complete_task),
            "ReleaseTask": self._changing(self._workers.release_task),
            "FailTask": self._changing(self._workers.fail_task),
            "Heartbeat": self._heartbeat,
            "JoinRing": self._join_ring,
            "StandBy": self._stand_by,
            "LeaveRing": self._changing(self._workers.leave_ring),
            "CommitCheckpoint": self._changing(self._workers.commit_checkpoint),
            "AgentReport": self._changing(self._of_script("agent_report")),
            "JoinRound": self._join_round,
            "GetRound": self._changing(self._of_script("get_round")),
            "LeaveRound": self._changing(self._of_script("leave_round")),
            "CloseRounds": self._changing(self._of_script("close_rounds")),
            "GetStatus": self._status,
            "Scale": self._scale,
            "Stop": self._stop,
        }
        return {name: _checked(handler) for name, handler in handlers.items()}

    def close(self) -> None:
        """Lets calls in flight end, and stops."""
        if self._server is not None:
            self._server.stop(grace=1.0).wait()

    def apply(self, event: JobEvent) -> None:
        """Hands an event to the job."""
        with self.changed:
            self.job.apply(event, self._clock())
            self.changed.notify_all()

    def status(self, events_after: int = 0) -> pb.GetStatusResponse:
        """The state of the job now; the caller holds ``changed``."""
        me = pb.ProcessStatus(
            role="master",
            id=0,
            pid=os.getpid(),
            state="running",
            address=self.address,
            log=self._log_path("master", 0),
        )
        return describe(
            self.job,
            events_after=events_after,
            now=self._clock(),
            master=me,
            log_path=self._log_path,
        )

    def _of_script(self, event: str) -> Callable[[Any, float], Any]:
        if isinstance(self.job, ScriptJob):
            return getattr(self.job, event)  # type: ignore[no-any-return]

        def refuse(request: Any, now: float) -> Any:
            raise UsageError(f"job {self.job.config.name} trains a model file, not a script")

        return refuse

    def _changing(self, event: Callable[[Any, float], Any]) -> Callable[[Any, Any], Any]:
        def handle(request: Any, _: grpc.ServicerContext) -> Any:
            with self.changed:
                answer = event(request, self._clock())
                self.changed.notify_all()
                self.keep()
            return answer

        return handle

    def _register_server(self, request: Any, _: grpc.ServicerContext) -> pb.RegisterServerResponse:
        with self.changed:
            self.job.register_server(request, self._clock())
            self.changed.notify_all()
        return pb.RegisterServerResponse()

    def _heartbeat(self, request: Any, _: grpc.ServicerContext) -> pb.HeartbeatResponse:
        with self.changed:
            return self._workers.heartbeat(request, self._clock())

    def _join_ring(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = self._wait(
            self._workers.join_ring, request, context, _RING_WAIT_S, notify=True, keep=True
        )
        return answer if answer is not None else pb.JoinRingResponse()

    def _stand_by(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = self._wait(
            self._workers.stand_by, request, context, _RING_WAIT_S, notify=True, keep=True
        )
        return answer if answer is not None else pb.StandByResponse()

    def _join_round(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = self._wait(
            self._of_script("join_round"), request, context, _RING_WAIT_S, notify=True, keep=True
        )
        return answer if answer is not None else pb.JoinRoundResponse()

    def _wait_until_ready(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = self._wait(
            self.job.wait_until_ready, request, context, _MODEL_WAIT_S, notify=True, keep=True
        )
        return answer if answer is not None else pb.WaitUntilReadyResponse()

    def _lease(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = self._wait(self._workers.lease, request, context, _LEASE_WAIT_S, notify=False)
        if answer is not None:
            return answer
        with self.changed:
            return self._workers.waiting()

    def _wait(
        self,
        event: Callable[[Any, float], Any],
        request: Any,
        context: grpc.ServicerContext,
        wait_s: float,
        *,
        notify: bool,
        keep: bool = False,
    ) -> Any:
        """Asks again on each change until there is an answer, or ``wait_s`` is over (None).

        Args:
            notify: the first time may change something for others.
            keep: what was answered must outlive this process.
        """
        deadline, first = self._clock() + wait_s, True
        with self.changed:
            while True:
                # Nothing may be leased to a call that is not there any more.
                if not context.is_active():
                    return None
                answer = event(request, self._clock())
                if notify and (first or answer is not None):
                    first = False
                    self.changed.notify_all()
                if keep and answer is not None:
                    self.keep()
                remaining = deadline - self._clock()
                if answer is not None or remaining <= 0:
                    return answer
                self.changed.wait(remaining)

    def _status(self, request: pb.GetStatusRequest, _: grpc.ServicerContext) -> Any:
        with self.changed:
            answer = self.status(request.events_after)
        if answer.state in _ENDED:
            self.end_seen.set()
        return answer

    def _scale(self, request: pb.ScaleRequest, _: grpc.ServicerContext) -> pb.ScaleResponse:
        with self.changed:
            text = self.job.scale(request, self._clock())
            self.changed.notify_all()
        return pb.ScaleResponse(text=text)

    def _stop(self, request: pb.StopRequest, _: grpc.ServicerContext) -> pb.StopResponse:
        with self.changed:
            reason = request.reason or "asked to stop"
            self.job.stop(reason, self._clock(), at_once=request.at_once)
            self.changed.notify_all()
        return pb.StopResponse()


def _checked(handler: Handler) -> Handler:
    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        check(request)
        return handler(request, context)

    return handle
