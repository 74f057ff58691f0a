"""The gRPC service of the master: one lock, one clock, and calls that wait for a change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from master.runtime.persistence import Noted, StateWriter
from master.state.calls import script_calls, server_calls, user_calls, worker_calls
from master.state.job.job import JobEvent, ManagedJob
from torch_edl.errors import UsageError
from torch_edl.events import StateNotStored, StateStoredAgain
from torch_edl.node.orders import Nodes
from torch_edl.processes import usage
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.endpoint import LOOPBACK, is_any
from torch_edl.wire.server import Handler, serve

_LEASE_WAIT_S = 2.0
_READY_S = 5.0
_RING_WAIT_S = 2.0
_CLUSTER_WAIT_S = 2.0
_PART_BYTES = 1 << 20
_THREADS = 64
# Each waiting call holds a thread: up to one per server, and a few more, of each worker.
_WAITING_THREADS = 4096
_ENDED = ("finished", "failed", "stopped")
# Upper bound of counts, positions, sizes and task ids: a float64 holds them exactly, and their sums
# fit the int64 fields of a status.
_LARGEST = 1 << 53
# Fields without this bound, which are never summed: a number that the user chose, an exit code
# (negative for a signal), nanoseconds since 1970, ids of embeddings and files.
_UNCOUNTED = frozenset({"seed", "code", "mtime_ns", "frequent_ids", "inode"})

Clock = Callable[[], float]
Event = Callable[[ManagedJob, Any, float], Any]
"""Maps (job, request, now) to the answer; None if there is no answer yet."""


class Service:
    """Answers all RPCs of the master.

    ``changed`` is the lock of the job; a thread that changes the job under it notifies the waiters.

    Args:
        cores: CPU cores to divide among the workers.
        nodes: the nodes that start the processes of the job; None if there are none.
        writer: writes the state before an answer that other processes rely on is sent; None:
            nothing is stored.
        history: file with the history of the job; None if clients read it themselves.
    """

    def __init__(
        self,
        job: ManagedJob,
        *,
        clock: Clock,
        log_path: user_calls.LogPath,
        cores: int,
        nodes: Nodes | None = None,
        writer: StateWriter | None = None,
        history: Path | None = None,
    ) -> None:
        self.job = job
        self._history = history
        self._nodes = nodes
        if nodes is not None:
            nodes.news = self._notify
        self._cores = cores
        self.changed = threading.Condition()
        self.end_seen = threading.Event()
        """Set once a client has fetched the final state."""
        self.address = ""
        """Address for processes of this machine; empty before :meth:`listen`."""
        self.listens = ""
        """``host:port`` at which the service listens; empty before :meth:`listen`."""
        self._writer = writer
        self._kept = job.fleet.model.incarnation  # model incarnation in the stored state
        self._unwritable = False  # the store fails, and this was reported
        self._clock = clock
        self._log_path = log_path
        self._server: grpc.Server | None = None

    def listen(self, token: str, address: str = "127.0.0.1:0") -> str:
        """Start to serve at ``host:port``; port 0 selects a free one. Returns the address. Raises
        UsageError if the address is not available."""
        self._server, port = serve(
            services.MASTER,
            self.handlers(),
            address=address,
            token=token,
            threads=_THREADS,
            waiting=self._waiting_handlers(),
            waiting_threads=_WAITING_THREADS,
        )
        host = address.rpartition(":")[0]
        self.listens = f"{host}:{port}"
        self.address = f"{LOOPBACK if is_any(address) else host}:{port}"
        return self.address

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by name of the method."""
        now = self._at_once
        workers, servers, scripts, user = worker_calls, server_calls, script_calls, user_calls
        handlers: dict[str, Handler] = {
            "RegisterServer": now(servers.register, keep=True),
            "ServerHeartbeat": now(
                servers.heartbeat, keep=lambda _, answer: bool(answer.noted), notify=False
            ),
            "ReportModel": now(workers.report_model, keep=True),
            "ReportData": now(scripts.report_data, keep=True),
            "ReportFailure": now(workers.report_failure, keep=True),
            "BeginTask": now(workers.begin_task, notify=False),
            # The worker that wrote the snapshot may exit before it is committed.
            "CompleteTask": now(
                workers.complete_task,
                keep=lambda request, _: request.WhichOneof("result") == "snapshot",
            ),
            "ReleaseTask": now(workers.release_task),
            "FailTask": now(workers.fail_task),
            "Heartbeat": now(workers.heartbeat, notify=False),
            "ReportSpan": now(workers.report_span, notify=False),
            "LeaveRing": now(workers.leave_ring, keep=True),
            "ReportCheckpoint": now(workers.report_checkpoint, keep=True),
            "GetRound": now(scripts.get_round, keep=True),
            "LeaveRound": now(scripts.leave_round, keep=True),
            "CloseRounds": now(scripts.close_rounds, keep=True),
            "GetStatus": self._status,
            "Scale": now(user.scale, keep=True),
            "Stop": now(user.stop, keep=True),
            "GetStacks": now(user.get_stacks, notify=False),
            "AddEvents": now(user.add_events),
            **self._waiting_handlers(),
        }
        return {name: _checked(handler) for name, handler in handlers.items()}

    def _waiting_handlers(self) -> dict[str, Handler]:
        """Return the handlers of calls that wait for a change of the job."""
        wait, leasing = self._waiting, self._leasing
        workers, servers, scripts = worker_calls, server_calls, script_calls
        return {
            "NodeReport": self._node_report,
            "Register": wait(
                workers.register, _RING_WAIT_S, partial(pb.RegisterResponse, wait=True)
            ),
            "GetCluster": wait(
                servers.get_cluster,
                _CLUSTER_WAIT_S,
                partial(servers.cluster_now, self.job),
                changes=False,
            ),
            "FitPreprocessing": wait(
                scripts.fit_preprocessing, _READY_S, pb.FitPreprocessingResponse
            ),
            "WaitUntilReady": wait(
                partial(workers.wait_until_ready, cores=self._cores),
                _READY_S,
                pb.WaitUntilReadyResponse,
            ),
            "Lease": wait(
                leasing(workers.lease),
                _LEASE_WAIT_S,
                partial(workers.nothing_to_lease, self.job),
                changes=False,
            ),
            "LeaseSnapshot": wait(
                leasing(workers.lease_snapshot), _LEASE_WAIT_S, pb.LeaseSnapshotResponse
            ),
            "BeginPass": wait(scripts.begin_pass, _RING_WAIT_S, pb.BeginPassResponse),
            "Meet": wait(scripts.meet, _RING_WAIT_S, pb.MeetResponse),
            "JoinRing": wait(workers.join_ring, _RING_WAIT_S, pb.JoinRingResponse),
            "StandBy": wait(workers.stand_by, _RING_WAIT_S, pb.JoinRingResponse),
            "JoinRound": wait(scripts.join_round, _RING_WAIT_S, pb.JoinRoundResponse),
        }

    def close(self) -> None:
        """Stop the server, after calls in flight have ended or one second."""
        if self._server is not None:
            self._server.stop(grace=1.0).wait()

    def apply(self, event: JobEvent) -> None:
        """Pass an event to the job."""
        with self.changed:
            self.job.apply(event, self._clock())
            self.changed.notify_all()

    def status(self, asked: pb.GetStatusRequest) -> pb.GetStatusResponse:
        """Return the current status of the job. The caller must hold ``changed``."""
        me = pb.ProcessStatus(
            role="master",
            id=0,
            pid=os.getpid(),
            state="running",
            address=self.address,
            log=self._log_path("master", 0),
            usage=pb.Usage(**usage.read()),
        )
        return user_calls.describe(
            self.job,
            asked=asked,
            now=self._clock(),
            master=me,
            log_path=self._log_path,
        )

    def hears(self, worker: int) -> bool:
        """Return whether a worker takes part in a job that continues, and was not declared lost."""
        return worker in self.job.members and self.job.lifecycle.outcome is None

    def keep(self) -> None:
        """Write the current state; OSError if that fails."""
        with self.changed:
            noted = self._note()
        self._write(noted)

    def _note(self, *, keep: bool = True) -> Noted | None:
        """Return a copy of the state, or None if it does not have to be stored. The caller must
        hold ``changed``.

        Args:
            keep: the call requires it. A new incarnation of the model is stored before any call
                reveals it: replaced servers exit when they learn of it, and a restarted master must
                not expect them.
        """
        if self._writer is None or not (keep or self.job.fleet.model.incarnation != self._kept):
            return None
        return self._writer.note(self.job)

    def _write(self, noted: Noted | None) -> None:
        if self._writer is None or noted is None:
            return
        try:
            self._writer.write(noted)
        except OSError as error:
            self.store_answered(error)
            raise
        self._kept = max(self._kept, noted.incarnation)

    def store_answered(self, error: OSError | None) -> None:
        """Report once that the state cannot be stored, and once that it can again."""
        with self.changed:
            if (error is not None) == self._unwritable:
                return
            self._unwritable = error is not None
            if error is None:
                self.apply(StateStoredAgain())
            else:
                self.apply(StateNotStored(error=str(error)))

    def _leasing(self, event: Event) -> Event:
        """Return the event with no answer, so that its call waits, while another master of the job
        may grant leases."""
        if (writer := self._writer) is None:
            return event

        def guarded(job: ManagedJob, request: Any, now: float) -> Any:
            return event(job, request, now) if writer.may_lease else None

        return guarded

    def _at_once(
        self,
        event: Event,
        *,
        keep: bool | Callable[[Any, Any], bool] = False,
        notify: bool = True,
    ) -> Callable[[Any, Any], Any]:
        """Return a handler that answers at once.

        Args:
            keep: store the state before the answer, since other processes rely on it; or a function
                of request and answer that returns whether to store it.
            notify: the event may allow an answer to waiting calls.
        """

        def handle(request: Any, _: grpc.ServicerContext) -> Any:
            with self.changed:
                answer = event(self.job, request, self._clock())
                if notify:
                    self.changed.notify_all()
                noted = self._note(keep=keep(request, answer) if callable(keep) else keep)
            self._write(noted)
            return answer

        return handle

    def _waiting(
        self, event: Event, wait_s: float, otherwise: Callable[[], Any], *, changes: bool = True
    ) -> Callable[[Any, Any], Any]:
        """Return a handler that repeats the event after each change, until it has an answer or
        times out.

        Args:
            otherwise: makes the answer after the timeout.
            changes: the event changes state that other processes rely on.
        """

        def ask(request: Any, context: grpc.ServicerContext) -> Any:
            deadline, first = self._clock() + wait_s, True
            # Nothing may be leased to a call that was cancelled.
            while context.is_active():
                answer = event(self.job, request, self._clock())
                if changes and (first or answer is not None):
                    first = False
                    self.changed.notify_all()
                remaining = deadline - self._clock()
                if answer is not None or remaining <= 0:
                    return answer
                self.changed.wait(remaining)
            return None

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            with self.changed:
                answer = ask(request, context)
                noted = self._note(keep=changes and answer is not None)
                answer = otherwise() if answer is None else answer
            self._write(noted)
            return answer

        return handle

    def _node_report(self, request: pb.NodeReportRequest, context: grpc.ServicerContext) -> Any:
        if self._nodes is None:
            raise UsageError(f"node {request.node}: this job has no nodes")
        return self._nodes.report(request, context.is_active)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _status(self, request: pb.GetStatusRequest, _: grpc.ServicerContext) -> Any:
        with self.changed:
            if request.frequent_ids:
                self.job.fleet.servers.ids_asked_at = self._clock()
            answer = self.status(request)
        if request.HasField("history_after") and self._history is not None:
            answer.history.CopyFrom(_part(self._history, request.history_after))
        known = answer.events[-1].sequence if answer.events else request.events_after
        if answer.state in _ENDED and (request.shown_only or known >= answer.last_event):
            self.end_seen.set()
        return answer


def _part(path: Path, after: pb.HistoryPart) -> pb.HistoryPart:
    """Return what follows in a file, or its start if the client knows another file."""
    try:
        with open(path, "rb") as file:
            part = pb.HistoryPart(inode=os.fstat(file.fileno()).st_ino)
            part.offset = after.offset if after.inode == part.inode else 0
            file.seek(part.offset)
            part.content = file.read(_PART_BYTES)
            return part
    except OSError:  # there is none yet
        return pb.HistoryPart()


def _checked(handler: Handler) -> Handler:
    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        check(request)
        return handler(request, context)

    return handle


def check(request: Any) -> None:
    """Raise UsageError, naming the field, unless every integer is from -1 to 2**53."""
    for field, value in request.ListFields():
        for each in value if field.is_repeated else (value,):
            if isinstance(each, Message):
                check(each)
            elif field.name in _UNCOUNTED or not isinstance(each, int):
                continue
            elif not -1 <= each <= _LARGEST:
                raise UsageError(
                    f"{request.DESCRIPTOR.name}: {field.name} is {each}; expected -1 to 2**53"
                )
