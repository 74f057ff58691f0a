"""The workers of a job, and the records that its servers have applied.

A worker trains by itself (asynchronous SGD on parameter servers), so that the speed of a job is the
sum over its workers. It has the session of a real one: the messages of ``torch_edl.wire``, the real
``LeaseClient`` for its leases, and the real ``TaskDuration``, which says how many tasks to have in
hand. Only time and the computation are simulated.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from benchmarks.cluster.machines import Clock, Event, Pod
from benchmarks.cluster.spec import JobSpec
from torch_edl.data.task_space import TaskSpace
from torch_edl.data.tasks import AHEAD_S, TaskDuration
from torch_edl.master_client.leases import HeldLease, LeaseClient, TaskResult
from torch_edl.wire import master_pb2 as pb


class Watermarks:
    """Which records the servers of a job have applied: the witness that each is done once.

    All servers are one here, since none of them is lost in these experiments: they run on machines
    that stay. As in :mod:`torch_edl.ps_server`, a push of records that were applied is a duplicate,
    and one that leaves a gap is an error.
    """

    def __init__(self, space: TaskSpace) -> None:
        self._space = space
        self._marks = array("I", bytes(4 * space.total))
        self.applied = 0
        """Records."""
        self.duplicates = 0
        """Records that were pushed again."""

    @property
    def tasks(self) -> int:
        """Tasks of the job."""
        return len(self._marks)

    def of(self, task: int) -> int:
        """The first record of a task that was not applied."""
        return self._marks[task]

    def push(self, task: int, first: int, last: int) -> None:
        """A worker pushes the gradients of records ``first`` to ``last`` of a task."""
        mark = self._marks[task]
        if last <= mark:
            self.duplicates += last - first
            return
        assert first == mark, f"task {task}: a push of [{first}, {last}) at watermark {mark}"
        self._marks[task] = last
        self.applied += last - first

    def check(self) -> None:
        """Raises AssertionError unless every record of every task was applied."""
        for id, mark in enumerate(self._marks):
            assert mark == self._space.task(id).records, f"task {id}: {mark} records applied"


# Seconds from the start of the process until the worker registers (the import of torch), and from
# there until it has its model; uniform.
_IMPORT_S = 5.0, 9.0
_BUILD_S = 1.0, 2.0
# Standard deviation of the logarithm of the factor of the time of a task, whose mean is one.
_NOISE = 0.1
BATCH_SIZE = 64
_LEAVE_S = 0.5  # from the word that the job is over until the process has ended
_TERMINATED = 143
_ROUNDING = 1e-9  # an update whose time is over is complete


@dataclass(frozen=True)
class _Training:
    """The task that a worker trains."""

    lease: HeldLease
    offset: int
    """Its first record that was not done before."""
    began: float
    seconds: float

    @property
    def size(self) -> int:
        """Records of the task."""
        return self.lease.end - self.lease.start


class JobOfWorkers(Protocol):
    """The job, as its workers see it: the time, the servers, and the session with the master."""

    spec: JobSpec
    clock: Clock
    rng: Random
    watermarks: Watermarks

    def insist(self, request: Any, *, timeout_s: float, away_s: float) -> Any:
        """Call the master."""

    def wait(self, ask: Callable[[], bool]) -> None:
        """Ask again whenever the state of the job has changed, until the answer is True."""

    def works(self, pod: Pod, *, busy: bool) -> None:
        """A worker begins to compute, or pauses."""

    def exited(self, pod: Pod, code: int) -> None:
        """The process of a worker has ended."""


class Worker:
    """The process of worker ``id``."""

    def __init__(self, id: int, job: JobOfWorkers) -> None:
        self.id = id
        self._job = job
        self._leases = LeaseClient(job, id)  # type: ignore[arg-type]
        self._pace = TaskDuration()
        self._queue: deque[HeldLease] = deque()
        self._pod: Pod | None = None
        self._current: _Training | None = None
        self._done: Event | None = None
        self._records = self._steps = 0  # of tasks that it has reported
        self._asking = self._sated = self._busy = self._leaving = self._gone = False

    # ---- the process ----

    def run(self, pod: Pod) -> None:
        self._pod = pod
        job = self._job
        job.clock.after(job.rng.uniform(*_IMPORT_S), self._register)

    def terminate(self, pod: Pod) -> None:
        """Handle SIGTERM: announce the end, finish the update, return the tasks, and end."""
        if self._leaving or self._gone:
            return
        if not self._leases.incarnation:  # it has nothing that it would have to return
            self._exit(_TERMINATED)
            return
        self._leaving = True
        self._beat()
        self._leave()

    def kill(self, pod: Pod) -> None:
        """Fall silent; what the worker has pushed stays on the servers."""
        self._push_done()
        self._vanish()

    def _exit(self, code: int) -> None:
        if not self._gone:
            self._vanish()
            assert self._pod is not None
            self._job.exited(self._pod, code)

    def _vanish(self) -> None:
        self._gone = True
        if self._done is not None:
            self._done.cancel()
        self._work(False)

    # ---- the session ----

    def _ask(self, request: Any) -> Any:
        return self._job.insist(request, timeout_s=0, away_s=0)

    def _register(self) -> None:
        if self._gone:
            return
        self._ask(pb.RegisterRequest(worker_id=self.id, pid=1))
        job = self._job
        job.clock.after(job.rng.uniform(0, job.spec.heartbeat_s), self._beats)
        job.clock.after(job.rng.uniform(*_BUILD_S), self._report_model)

    def _report_model(self) -> None:
        if not self._gone:
            self._ask(pb.ReportModelRequest())
            self._job.wait(self._is_ready)

    def _is_ready(self) -> bool:
        if self._gone or self._leaving:
            return True
        answer = self._ask(pb.WaitUntilReadyRequest(worker_id=self.id))
        if answer is None:
            return False
        if answer.leave:
            self._exit(0)
            return True
        self._leases.incarnation = answer.start.cluster.incarnation
        self._pace.asked(self._job.clock.now)
        self._fill()
        return True

    def _beats(self) -> None:
        if not self._gone:
            self._beat()
            self._job.clock.after(self._job.spec.heartbeat_s, self._beats)

    def _beat(self) -> None:
        records, steps = self._records, self._steps
        if self._current is not None:
            more = self._pushed() - self._current.offset
            records, steps = records + more, steps + more // BATCH_SIZE
        request = pb.HeartbeatRequest(
            worker_id=self.id,
            phase="training" if self._busy else "waiting",
            records=records,
            steps=steps,
            leaving=self._leaving,
            loss=float("nan"),
        )
        answer = self._ask(request)
        if answer.drain and not self._leaving and not self._gone and self._leases.incarnation:
            self._leaving = True
            self._leave()

    # ---- leases ----

    def _missing(self) -> int:
        return max(0, self._pace.tasks(AHEAD_S) - len(self._queue))

    def _fill(self) -> None:
        """Leases what is missing, as :class:`torch_edl.data.tasks.LeasedTasks` does."""
        if not self._asking and not self._sated and self._missing() > 0:
            self._asking = True
            self._job.wait(self._is_answered)

    def _is_answered(self) -> bool:
        if self._gone or self._leaving:
            return True
        missing, want = self._missing(), int(not self._queue)
        answer = self._leases.request(want, missing - want)
        if answer.next == pb.LeaseResponse.WAIT:
            return False
        self._asking = False
        if answer.next in (pb.LeaseResponse.FINISHED, pb.LeaseResponse.DRAIN):
            self._leaving = True
            self._work(False)
            self._job.clock.after(_LEAVE_S, lambda: self._exit(0))
            return True
        assert answer.next == pb.LeaseResponse.LEASED, "the servers stay"
        self._queue.extend(map(HeldLease.from_proto, answer.leases))
        self._sated = bool(self._queue) and len(answer.leases) < missing
        if self._current is None:
            self._take()
        return True

    def _take(self) -> None:
        """Begins the next task, if there is one."""
        job = self._job
        self._pace.asked(job.clock.now)
        self._sated = False
        if self._queue:
            lease = self._queue.popleft()
            self._pace.given(job.clock.now)
            self._begin(lease)
        else:
            self._work(False)
        self._fill()

    # ---- training ----

    def _begin(self, lease: HeldLease) -> None:
        job, size = self._job, lease.end - lease.start
        offset = lease.offset
        if lease.retried:
            offset = max(offset, job.watermarks.of(lease.task_id))
        factor = math.exp(job.rng.gauss(-(_NOISE**2) / 2, _NOISE))
        seconds = (size - offset) / job.spec.records_per_s * factor
        self._work(True)
        self._current = _Training(lease, offset, job.clock.now, seconds)
        self._done = job.clock.after(seconds, self._complete)

    def _complete(self) -> None:
        assert self._current is not None
        lease, result = self._current.lease, self._push(self._current.size)
        self._leases.complete(lease, result)
        self._take()

    def _pushed(self) -> int:
        """The records of the task in training whose update is complete, from its start."""
        assert self._current is not None
        task, batch = self._current, BATCH_SIZE
        if not task.seconds:
            return task.size
        part = min(1.0, (self._job.clock.now - task.began) / task.seconds + _ROUNDING)
        return min(task.size, task.offset + int((task.size - task.offset) * part / batch) * batch)

    def _push_done(self) -> None:
        if self._current is not None:
            self._push(self._pushed())

    def _push(self, last: int) -> TaskResult:
        """Push the records up to ``last``, and release the task."""
        assert self._current is not None
        task, self._current = self._current, None
        if last > task.offset:
            self._job.watermarks.push(task.lease.task_id, task.offset, last)
        records = last - task.offset
        steps = -(-records // BATCH_SIZE)
        self._records += records
        self._steps += steps
        return TaskResult(records=records, steps=steps, offset=last)

    # ---- leaving ----

    def _leave(self) -> None:
        """Finishes the update in hand, returns the tasks, and ends."""
        if self._done is not None:
            self._done.cancel()
        left_s = 0.0
        if (task := self._current) is not None and task.seconds:
            updates = max(1, -(-(task.size - task.offset) // BATCH_SIZE))
            update_s = task.seconds / updates
            left_s = update_s - (self._job.clock.now - task.began) % update_s
        self._job.clock.after(left_s, self._return)

    def _return(self) -> None:
        if self._gone:
            return
        if self._current is not None:
            lease = self._current.lease
            self._leases.release(lease, self._push(self._pushed()))
        self._leases.decline(self._queue)
        self._queue.clear()
        self._exit(_TERMINATED)

    def _work(self, busy: bool) -> None:
        if busy != self._busy:
            self._busy = busy
            assert self._pod is not None
            self._job.works(self._pod, busy=busy)
