"""Reports the workers to the master without blocking the agent."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import grpc

from torch_edl.launch.agent.workers import LocalWorker
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import FULL, REFUSED, Stub, unanswered

log = logging.getLogger(__name__)

PERIOD_S = 0.5
_CALL_TIMEOUT_S = 5.0
_FINAL_TIMEOUT_S = 3.0
# A status of the job is requested with every second report.
_STATUS_EVERY = 2
# The largest event number that the master accepts, so that a status has no events.
_NO_EVENTS = 1 << 53

_Answer = tuple[pb.AgentReportResponse, pb.GetStatusResponse | None]


class Reporter:
    """Reports twice a second, and at once if there is news.

    One thread uses the reporter and calls :meth:`turn` after each ``wake``. The calls to the master
    run in another thread.

    Args:
        agent: constant fields of a report, which describe this agent.
        wake: called in the thread of the calls after each answer or failure.
        show: receives each status of the job.
        wants_events: True if a status must contain the events since the last status.
    """

    def __init__(
        self,
        stub: Stub,
        agent: pb.AgentReportRequest,
        *,
        wake: Callable[[], None],
        show: Callable[[pb.GetStatusResponse], None],
        wants_events: bool,
    ) -> None:
        self._stub = stub
        self._report = agent
        self._wake = wake
        self._show = show
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="agent-report")
        self._call: Future[_Answer] | None = None
        self._count = 0
        self._running: list[pb.AgentWorker] = []
        self._ended: list[pb.AgentWorker] = []
        self._ends_in_call = 0
        self._news = False
        self._due_at = 0.0
        self._is_full = False
        self._events_after = 0 if wants_events else _NO_EVENTS
        self.steps = 0
        """Steps of the job, from the newest status."""
        self.heard = time.monotonic()
        """Monotonic time of the master's last answer; at first, the time of creation."""
        self.problem = ""
        """Error of the last report; empty if the master has answered it."""
        self.refusal = ""
        """Error with which the master rejected this agent for good; empty otherwise."""

    def tell(
        self,
        running: Sequence[LocalWorker],
        ended: Sequence[LocalWorker] = (),
        *,
        done: bool = False,
        error: str = "",
        traceback: str = "",
    ) -> None:
        """Report the state of the workers; an end is repeated until the master has answered."""
        self._running = list(map(_told, running))
        self._ended += map(_told, ended)
        self._report.done = self._report.done or done
        if not self._report.error:
            self._report.error, self._report.traceback = error, traceback
        self._news, self._due_at = True, 0.0
        if self._call is None:
            self._send(_CALL_TIMEOUT_S)

    def turn(self, now: float) -> pb.AgentReportResponse | None:
        """Return the answer to the last report, if it has arrived; send a report if one is due."""
        answer = self._take(self._call) if self._call is not None and self._call.done() else None
        if self._call is None and now >= self._due_at:
            self._send(_CALL_TIMEOUT_S)
        return answer

    def close(self) -> None:
        """Send what the master does not know yet, in one attempt, and end the calls."""
        if self._call is not None:
            self._take(self._call)
        if self._news:
            self._send(_FINAL_TIMEOUT_S)
        if self._call is not None:
            self._take(self._call)
        self._calls.shutdown()

    def _send(self, timeout_s: float) -> None:
        if self.refusal:
            return
        request = pb.AgentReportRequest(workers=[*self._running, *self._ended])
        request.MergeFrom(self._report)
        self._ends_in_call = len(self._ended)
        self._news, self._due_at = False, time.monotonic() + PERIOD_S
        self._call = self._calls.submit(self._exchange, request, timeout_s)
        self._call.add_done_callback(lambda _: self._wake())

    def _exchange(self, request: pb.AgentReportRequest, timeout_s: float) -> _Answer:
        answer = self._stub.call(request, timeout_s=timeout_s)
        status = None
        if answer.over or self._count % _STATUS_EVERY == 0:
            ask = pb.GetStatusRequest(events_after=self._events_after)
            with contextlib.suppress(grpc.RpcError):  # requested again with a later report
                status = self._stub.call(ask, timeout_s=_FINAL_TIMEOUT_S)
        self._count += 1
        return answer, status

    def _take(self, call: Future[_Answer]) -> pb.AgentReportResponse | None:
        """Wait for a call and apply its result; return the answer, or None if the call failed."""
        self._call = None
        try:
            answer, status = call.result()
        except grpc.RpcError as error:
            self._news = True  # the report must be sent again
            self.problem = unanswered(error)
            if error.code() in REFUSED:
                self.refusal = error.details() or error.code().name.lower()
            elif error.code() is FULL:
                if not self._is_full:
                    log.warning("%s: the job waits until there is room", error.details())
                self._is_full = True
                self.heard = time.monotonic()
            return None
        self._is_full = False
        self.heard, self.problem = time.monotonic(), ""
        del self._ended[: self._ends_in_call]
        if status is not None:
            for event in status.events:
                self._events_after = event.sequence
            self.steps = status.steps
            self._show(status)
        return answer


def _told(worker: LocalWorker) -> pb.AgentWorker:
    return pb.AgentWorker(
        local_rank=worker.local_rank,
        pid=worker.pid,
        log=worker.log,
        exited=worker.code is not None,
        code=worker.code or 0,
        in_loop=worker.open_loop is not None,
        why=worker.why,
    )
