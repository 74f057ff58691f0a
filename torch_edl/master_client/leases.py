"""Leases of a worker: request tasks from the master and report their results."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.errors import MasterLostError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import MASTER_AWAY_S, Stub

# Longer than the master's long poll of 2 s.
_CALL_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class HeldLease:
    """A task that is leased to a worker; ``tasks.proto`` describes the fields."""

    lease_id: int = 0
    kind: pb.TaskKind = pb.TASK_TRAIN
    task_id: int = 0
    shard: str = ""
    start: int = 0
    end: int = 0
    epoch: int = 0
    offset: int = 0
    retried: bool = False
    states: Sequence[pb.MetricState] = ()
    directory: str = ""
    shard_records: int = 0
    shard_size: int = 0
    shard_mtime_ns: int = 0
    first: pb.FirstRecords = field(default_factory=pb.FirstRecords)
    suspect: bool = False
    skip: Sequence[pb.TaskStep] = ()
    incarnation: int = 0
    """Incarnation of the model when the task was leased; the answer of the master carries it once
    for all its leases."""

    @classmethod
    def from_proto(cls, message: pb.LeaseMessage, incarnation: int = 0) -> HeldLease:
        """Decode a lease message."""
        names = [field.name for field in fields(cls) if field.name != "incarnation"]
        return cls(incarnation=incarnation, **{name: getattr(message, name) for name in names})


@dataclass(kw_only=True)
class TaskResult:
    """The completed part of a task, with its results."""

    records: int = 0
    """Number of committed records."""
    steps: int = 0
    """Number of committed minibatches."""
    nan_steps: int = 0
    """Number of minibatches skipped because the loss was not finite."""
    damaged: int = 0
    """Number of damaged records that were skipped."""
    offset: int = 0
    """Number of leading records of the task that are committed, by this and earlier workers."""
    metrics: Sequence[pb.MetricState] = ()
    """Evaluation tasks: states of the metrics."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Summary tasks: values of the metric objects."""
    snapshot: Snapshot | None = None
    statistics: bytes = b""
    """Fitting tasks: statistics of the records for the preprocessing."""

    def counts(self) -> pb.TaskCounts:
        """Return the counters as a message."""
        return pb.TaskCounts(
            records=self.records,
            steps=self.steps,
            nan_steps=self.nan_steps,
            damaged=self.damaged,
            offset=self.offset,
        )


class LeaseClient:
    """The leases of one worker. Thread-safe: the loader leases while the trainer reports.

    A lease stays in ``held`` until the master has accepted its report. A lost answer therefore
    never strands a task: the master takes back the tasks that a worker does not hold. A thread
    sends the reports that no caller waits for, in order, so training continues while a killed
    master is restarted.
    """

    def __init__(self, master: Stub, worker_id: int) -> None:
        self._master = master
        self._lock = threading.Lock()
        self._held: dict[int, pb.LeasedTask] = {}
        self._reports: ThreadPoolExecutor | None = None  # created for the first report
        self._reported: deque[Future[Any]] = deque()
        self.worker_id = worker_id
        self.incarnation = 0
        self.retired_before = 0
        self.epochs = 0
        """No task of a later epoch is leased; 0: of any epoch."""

    def request(self, want: int = 1, ahead: int = 0, *, fit: bool = False) -> pb.LeaseResponse:
        """Request tasks from the master, which waits a few seconds if there are none.

        Args:
            want: number of tasks wanted; 0 returns at once.
            ahead: number of further tasks to take if there are plenty.
            fit: request only tasks that fit the preprocessing; does not wait.

        Raises:
            MasterLostError: the master did not answer before the deadline.
        """
        # Only one thread leases, so no other answer is in flight. The lock is released during the
        # call, which may take seconds.
        with self._lock:
            held, tasks = list(self._held), list(self._held.values())
        answer: pb.LeaseResponse = self._call(
            pb.LeaseRequest(
                worker_id=self.worker_id,
                want=want,
                ahead=ahead,
                fit=fit,
                epochs=self.epochs,
                incarnation=self.incarnation,
                held=held,
                tasks=tasks,
            )
        )
        with self._lock:
            if answer.next == pb.LeaseResponse.CLUSTER_CHANGED:
                self._held.clear()
                self.incarnation = answer.cluster.incarnation
                # The master reset the tasks together with the model: retired tasks run again.
                self.retired_before = 0
            for lease in answer.leases:
                self._hold(lease)
            self.retired_before = max(self.retired_before, answer.retired_before)
        return answer

    def _hold(self, lease: pb.LeaseMessage) -> None:
        self._held[lease.lease_id] = pb.LeasedTask(
            kind=lease.kind, task_id=lease.task_id, incarnation=self.incarnation
        )

    def begin(self, lease: HeldLease, first: pb.FirstRecords) -> None:
        """Report the first records of a task, without waiting for the master.

        Raises:
            MasterLostError: an earlier report did not reach the master.
        """
        request = pb.BeginTaskRequest(
            worker_id=self.worker_id, lease_id=lease.lease_id, first=first
        )
        with self._lock:
            request.task.CopyFrom(self._held[lease.lease_id])
        self._send(self._call, request)

    @contextmanager
    def step(self, lease: HeldLease, first: int, last: int, name: str) -> Iterator[None]:
        """Return a context in which this process reads, feeds or computes records of a suspect
        task: the master is told, so that a death of the process counts against the records. After
        an exception, the step does not end: the task does, or the process.

        Args:
            first: offset of the first record in the task.
            last: offset after the last record.
            name: name of the records, for messages.

        Raises:
            MasterLostError: the master does not answer.
        """
        if not lease.suspect:
            yield
            return
        self._report_step(lease, pb.TaskStep(first=first, last=last, name=name))
        yield
        self._report_step(lease, pb.TaskStep())

    def _report_step(self, lease: HeldLease, step: pb.TaskStep) -> None:
        request = pb.BeginTaskRequest(worker_id=self.worker_id, lease_id=lease.lease_id, step=step)
        with self._lock:
            if (task := self._held.get(lease.lease_id)) is not None:
                request.task.CopyFrom(task)
        self._call(request)

    def report(self, lease: HeldLease, result: TaskResult) -> None:
        """Report that a task is complete, without waiting for the master.

        Raises:
            MasterLostError: an earlier report did not reach the master.
        """
        self._send(self.complete, lease, result)

    def _send(self, call: Callable[..., Any], *args: Any) -> None:
        while self._reported and self._reported[0].done():
            self._reported.popleft().result()
        if self._reports is None:
            self._reports = ThreadPoolExecutor(1, thread_name_prefix="reports")
        self._reported.append(self._reports.submit(call, *args))

    def settle(self) -> None:
        """Wait until the master has received all reports.

        Raises:
            MasterLostError: the master does not answer.
        """
        while self._reported:
            self._reported.popleft().result()

    def close(self) -> None:
        """End the thread of the reports and drop reports that were not sent."""
        if self._reports is not None:
            self._reports.shutdown(wait=False, cancel_futures=True)

    def complete(self, lease: HeldLease, result: TaskResult) -> bool:
        """Report that a task is complete; False if the master had revoked the lease."""
        request = pb.CompleteTaskRequest(
            worker_id=self.worker_id, lease_id=lease.lease_id, counts=result.counts()
        )
        if result.metrics:
            request.metrics.states.extend(result.metrics)
        elif result.values:
            request.values.values.update(result.values)
        elif result.snapshot is not None:
            request.snapshot.CopyFrom(result.snapshot.to_proto())
        elif result.statistics:
            request.statistics = result.statistics
        return bool(self._end(request).known)

    def decline(self, leases: Iterable[HeldLease]) -> None:
        """Return tasks that the worker has not started.

        Raises:
            MasterLostError: the master does not answer.
        """
        for lease in leases:
            self._end(pb.ReleaseTaskRequest(worker_id=self.worker_id, lease_id=lease.lease_id))

    def release(self, lease: HeldLease, done: TaskResult | None = None) -> None:
        """Return a task to the queue, which does not count as a failure.

        Args:
            done: the committed part of the task; None if nothing is committed.
        """
        self.settle()
        request = pb.ReleaseTaskRequest(
            worker_id=self.worker_id,
            lease_id=lease.lease_id,
            counts=(done or TaskResult()).counts(),
        )
        self._end(request)

    def fail(
        self,
        lease: HeldLease,
        error: str,
        traceback: str,
        *,
        fatal: bool,
        untried: bool = False,
        done: TaskResult | None = None,
    ) -> bool:
        """Report that the user's code raised; return True if this has ended the job.

        Args:
            fatal: True if a retry would fail in the same way.
            untried: True if the user's code has never computed an update in this process.
            done: the part of the task that was committed before the failure.
        """
        self.settle()
        request = pb.FailTaskRequest(
            worker_id=self.worker_id,
            lease_id=lease.lease_id,
            counts=(done or TaskResult()).counts(),
            error=error,
            traceback=traceback,
            fatal=fatal,
            untried=untried,
        )
        return bool(self._end(request).over)

    def _end(self, request: Any) -> Any:
        with self._lock:
            task = self._held.get(request.lease_id)
        if task is not None:
            request.task.CopyFrom(task)
        answer = self._call(request)
        with self._lock:
            self._held.pop(request.lease_id, None)
        return answer

    def snapshots(self) -> Iterator[HeldLease]:
        """Yield the snapshots that this worker must write before it leaves, because no other
        worker has the model."""
        request = pb.LeaseSnapshotRequest(worker_id=self.worker_id)
        while not (answer := self._call(request)).leave:
            if answer.HasField("lease"):
                with self._lock:
                    self._hold(answer.lease)
                yield HeldLease.from_proto(answer.lease)

    def _call(self, request: Message) -> Any:
        try:
            return self._master.insist(request, timeout_s=_CALL_TIMEOUT_S, away_s=MASTER_AWAY_S)
        except grpc.RpcError as error:
            method = services.method_of(request).name
            raise MasterLostError(f"{method}: {error.code().name}: {error.details()}") from None
