"""Reports the workers to the master in a thread of its own: an absent master stops no worker."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

import grpc

from torch_edl.agent.workers import Ended, Worker
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import FULL, Stub

log = logging.getLogger(__name__)

PERIOD_S = 0.5
_CALL_TIMEOUT_S = 5.0
_FINAL_TIMEOUT_S = 3.0
# The status of the job is asked for with every second report.
_STATUS_EVERY = 2
# The largest number that the master takes; no event has it.
_NO_EVENTS = 1 << 53
# Answers that no repetition mends.
_FATAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)


class Reporter:
    """Reports twice a second, and at once when there is news.

    Args:
        stub: of the master; closed with the reporter.
        agent: the fields of a report that never change: who reports, from where, and what for.
        wake: called in the reporter's thread after an answer, or the lack of one.
        wants_events: the statuses of :meth:`statuses` are to have the events of the job.
    """

    def __init__(
        self,
        stub: Stub,
        agent: pb.AgentReportRequest,
        *,
        wake: Callable[[], None],
        wants_events: bool,
    ) -> None:
        self._stub = stub
        self._agent = agent
        self._wake = wake
        self._changed = threading.Condition()
        self._running: list[pb.AgentWorker] = []
        self._ended: list[pb.AgentWorker] = []
        self._done = False
        self._error = ("", "")
        self._news = True
        self._closed = False
        self._is_full = False
        self._answers: list[pb.AgentReportResponse] = []
        self._statuses: list[pb.GetStatusResponse] = []
        self._events_after = 0 if wants_events else _NO_EVENTS
        self.status: pb.GetStatusResponse | None = None
        """The newest status of the job; None before the first one."""
        self.heard = time.monotonic()
        """When the master answered last, or the reporter was started."""
        self.refusal = ""
        """Why the master will never answer; empty: it may."""
        self._thread = threading.Thread(target=self._report, name="agent-report", daemon=True)
        self._thread.start()

    def tell(
        self,
        running: Sequence[Worker],
        ended: Sequence[Ended] = (),
        *,
        done: bool = False,
        error: str = "",
        traceback: str = "",
    ) -> None:
        """Reports the state of the workers; an end is repeated until the master has answered."""
        with self._changed:
            self._running = [_told(worker) for worker in running]
            self._ended += [_told(end.worker, exited=True, code=end.code) for end in ended]
            self._done = self._done or done
            if error and not self._error[0]:
                self._error = (error, traceback)
            self._news = True
            self._changed.notify()

    def answers(self) -> list[pb.AgentReportResponse]:
        """The answers of the master since the last call."""
        with self._changed:
            answers, self._answers = self._answers, []
        return answers

    def statuses(self) -> list[pb.GetStatusResponse]:
        """The statuses of the job since the last call, each with its new events."""
        with self._changed:
            statuses, self._statuses = self._statuses, []
        return statuses

    def close(self) -> None:
        """Ends the thread, after one more try to report what the master does not know yet."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CALL_TIMEOUT_S + _FINAL_TIMEOUT_S)
        self._stub.close()

    def _report(self) -> None:
        for count in range(1 << 62):
            with self._changed:
                if not self._news and not self._closed:
                    self._changed.wait(PERIOD_S)
                if self._closed and not self._news:
                    return
                closing, self._news = self._closed, False
                told = len(self._ended)
                request = pb.AgentReportRequest(
                    workers=[*self._running, *self._ended],
                    done=self._done,
                    error=self._error[0],
                    traceback=self._error[1],
                )
                request.MergeFrom(self._agent)
            timeout_s = _FINAL_TIMEOUT_S if closing else _CALL_TIMEOUT_S
            try:
                response = self._stub.call(request, timeout_s=timeout_s)
            except grpc.RpcError as error:
                if error.code() is FULL:
                    self._wait_for_room(error.details())
                with self._changed:
                    if error.code() in _FATAL:
                        self.refusal = error.details() or error.code().name.lower()
                    if closing or self.refusal:
                        self._wake()
                        return
                    self._changed.wait(PERIOD_S)
                    self._news = True  # nobody has heard it
                self._wake()
                continue
            except ValueError:  # the stub was closed under us
                return
            self._is_full = False
            if response.over or count % _STATUS_EVERY == 0:
                self._look()
            with self._changed:
                self.heard = time.monotonic()
                del self._ended[:told]
                self._answers.append(response)
            self._wake()

    def _wait_for_room(self, details: str) -> None:
        """Notes that the master answers, but its disk is full."""
        if not self._is_full:
            self._is_full = True
            log.warning("%s: the job waits until there is room", details)
        self.heard = time.monotonic()

    def _look(self) -> None:
        """Asks for the status of the job; a failure does no harm."""
        request = pb.GetStatusRequest(events_after=self._events_after)
        with contextlib.suppress(grpc.RpcError, ValueError):
            status = self._stub.call(request, timeout_s=_FINAL_TIMEOUT_S)
            for event in status.events:
                self._events_after = event.sequence
            with self._changed:
                self.status = status
                self._statuses.append(status)


def _told(worker: Worker, *, exited: bool = False, code: int = 0) -> pb.AgentWorker:
    return pb.AgentWorker(
        local_rank=worker.local_rank, pid=worker.pid, log=worker.log, exited=exited, code=code
    )
