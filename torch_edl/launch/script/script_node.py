"""The node of a script on one machine: its output, its signals, and the master that it hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    record,
)
from torch.distributed.launcher.api import LaunchConfig

from torch_edl.config import Experiment
from torch_edl.errors import JobFailedError
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs.master_host import JobMaster
from torch_edl.launch.script.workers import LocalWorker, Workers, failure_text, grace_s
from torch_edl.node.children import Children
from torch_edl.node.node import Node
from torch_edl.processes import preemption
from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.script_marks import is_failing
from torch_edl.processes.signals import describe_exit, parse_signals
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.endpoint import free_port, own_address
from torch_edl.wire.event_messages import NO_EVENTS

log = logging.getLogger(__name__)

# Interval for reading the output of workers.
_LOOK_S = 0.1
_MASTER_LEAVES_S = 10.0
# Time to wait for a silent master after all workers of this machine have completed the script.
_DONE_SILENCE_S = 30.0
# Time without an answer of the master after which the node logs a warning and keeps waiting.
_SILENT_S = 30.0
_CALL_S = 2.0
_STATUS_EVERY_S = 1.0
# The same once all workers of this machine have completed the script: the end of the job is near.
_STATUS_SOON_S = 0.1
# Time for the master to report the end of the job after the last worker has ended.
_FAREWELL_S = 3.0
# The same if the master may first write a last checkpoint of its servers.
_FAREWELL_STOPPING_S = 90.0


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """What the node of a script runs."""

    config: LaunchConfig
    """Configuration from torchrun; ``nproc_per_node`` workers run on this machine."""
    command: Sequence[str]
    """Command of a worker."""
    name: str
    """Name of the script, for failure reports."""
    show_status: Callable[[pb.GetStatusResponse], None]
    """Shows the status of the job, with new events if this node hosts the master."""
    show_output: Callable[[LocalWorker, str, bytes], None] | None
    """Shows a line of a worker, with ``stdout`` or ``stderr``. None if the workers write to the
    terminal themselves."""
    experiment: Experiment
    """Experiment of this node, which the master compares with those of other nodes."""
    master: JobMaster
    silence_s: float
    """Seconds without an answer of the master after which this node fails."""
    join_timeout_s: float
    """Seconds to wait for the first answer of the master, and for a free place."""
    notice: str | None = None
    """Notice of preemption after which this node stops, see
    :func:`torch_edl.processes.preemption.watch`."""
    pod: str = ""
    """Name of a node in a pod; empty on a machine. The master replaces the pod after its end; a
    signal then stops this node only, and not the job."""


class ScriptNode(Node):
    """Runs the workers of a script on one machine. Must be used from the main thread."""

    def __init__(self, spec: ScriptSpec) -> None:
        self._spec, self._config, self._master = spec, spec.config, spec.master
        wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._workers = Workers(spec.config, spec.command, spec.master.environment())
        children = Children("", job=spec.config.run_id, forked=self._workers.forked, wakes=wakes)
        address, token = spec.master.address, spec.master.token
        own = spec.config.local_addr or own_address(address)
        host = spec.config.local_addr or socket.gethostname()
        # Containers may share a host name, and then often have equal pids.
        name = spec.pod or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._control = Stub(services.CONTROL, address, token)
        super().__init__(
            pb.NodeReportRequest(
                node=name,
                host="" if spec.pod else host,
                slots=spec.config.nproc_per_node,
                experiment=pb.Experiment(**dataclasses.asdict(spec.experiment)),
                address=own,
                port=free_port(),
            ),
            children,
            Stub(services.NODES, address, token),
            Stub(services.NODES, address, token),
            away_s=spec.silence_s,
            wakes=wakes,
            signals=parse_signals(spec.config.signals_to_handle, "--signals-to-handle"),
            grace_s=grace_s(spec.config),
        )
        if spec.show_output is not None:
            self.poll_s = _LOOK_S
        self._began_at = time.monotonic()
        self._status: Future[Any] | None = None
        self._status_at = 0.0
        self._events_after = 0 if spec.master.hosted is not None else NO_EVENTS
        self._error = ""
        """Why this node ends although the master did not ask it to; empty if it does not."""
        self._told_silence = False
        self._completed: dict[int, bool] = {}
        """Whether the worker of each rank has come to the end of the script."""
        self._asked: set[int] = set()
        """Workers that the master has asked to end."""
        self._asked_to_stop = 0
        """Number of calls that have asked the master to stop the job."""
        self._failures: dict[int, ProcessFailure] = {}
        """Failures of the workers that ended by themselves, by rank."""
        self.failure_code: int | None = None
        """Exit code of the first worker that failed; None if no worker made the job fail."""

    def outcome(self) -> JobOutcome:
        """Run until the job or this node ends.

        Returns:
            The outcome on this machine: ``failed`` if a worker of it made the job fail, ``stopped``
            after a signal.

        Raises:
            JobFailedError: the job ended elsewhere, or its master cannot be reached.
        """
        assert self._config.logs_specs is not None
        logs = self._config.logs_specs.root_log_dir
        # If another launcher started this node, the failure is reported to that launcher.
        run = record(self._run_all) if "TORCHELASTIC_ERROR_FILE" in os.environ else self._run_all
        try:
            run()
        except ChildFailedError as error:
            self.failure_code = error.get_first_failure()[1].exitcode
            return JobOutcome(state="failed", status=None, error=self._reason, logs=logs)
        # A signal after the end of the script stops nothing, if the master sees it in the same way.
        complete = self._is_done and self._leaves and not self._reason
        signal_ = 0 if complete else self._signals.first
        state = "stopped" if signal_ else "finished"
        return JobOutcome(state=state, status=None, signal=signal_, logs=logs)

    def _run_all(self) -> None:
        self._signals.install()
        preemption.watch(lambda _: os.kill(os.getpid(), signal.SIGTERM), self._spec.notice)
        hosted = self._master.hosted
        try:
            self.run()
            if hosted is not None and self._leaves:
                # The master leaves once its last status was fetched.
                hosted.wait(_MASTER_LEAVES_S, lambda: self._follow(time.monotonic()))
        finally:
            for worker in list(self._workers.running.values()):
                worker.close()
            if hosted is not None:
                hosted.close(grace_s=_MASTER_LEAVES_S)
            self._master.leave()
            self._show(final=True)
            for stub in (self._control, *self._stubs.values()):
                stub.close()
        if self._signals.count:
            return
        if self._failures and self._leaves and self._code:
            raise ChildFailedError(name=self._spec.name, failures=self._failures)
        if self._reason:
            raise JobFailedError(self._reason)

    @property
    def _reason(self) -> str:
        """Why the job did not finish on this machine; empty if it did."""
        if self._error:
            return self._error
        if self._problem and self._why:  # the master has rejected the node
            return f"the master at {self._master.address}: {self._why}"
        return self._why if self._leaves else ""

    @property
    def _is_done(self) -> bool:
        """True if all workers of this machine have come to the end of the script."""
        waits = bool(self._running or self._ordered)
        return bool(self._completed) and all(self._completed.values()) and not waits

    # ---- one turn ----

    def _turn(self, now: float) -> None:
        super()._turn(now)
        for id, worker in self._workers.running.items():
            report = self._running.get(("worker", id))
            if report is not None and not report.failing and is_failing(worker.error_file):
                report.failing = True
                self._due[False] = 0.0
        self._show()
        self._follow(now)
        self._heed_master()
        self._heed_silence(now)

    def _is_over(self, now: float) -> bool:
        if self._leaves:
            return True
        if self._error:
            self._drain()
            return self._has_drained(now)
        if not self._signals.count:
            return False
        ends_job = self._ends_job
        hurried = self._signals.count > 1
        if not self._drains:
            count = len(self._running)
            log.warning("%s: stopping %d worker%s", self._signals.name, count, "s" * (count != 1))
        if ends_job and self._asked_to_stop < min(self._signals.count, 2):
            self._asked_to_stop += 1
            request = pb.StopRequest(reason=self._signals.name, at_once=self._asked_to_stop > 1)
            # Sent first: the worker with the model asks the master if all others leave.
            with contextlib.suppress(grpc.RpcError):
                self._control.call(request, timeout_s=_CALL_S)
        self._drain()
        if hurried:
            for role, id in self._running:
                self._children.stop(role, id, grace_s=0.0)
        if not ends_job:
            return self._has_drained(now)
        if self._running:
            return False
        waits_s = _FAREWELL_S if hurried else _FAREWELL_STOPPING_S
        return self._empty_s(now) > waits_s

    def _has_drained(self, now: float) -> bool:
        # A pod does not report these ends: the cluster tells why the pod has ended.
        return self._has_reported(now) if self._has_joined else not self._children.is_running

    @property
    def _ends_job(self) -> bool:
        """True if a signal ends the job; False if other machines continue it."""
        is_last = self._config.max_nodes == 1 or self._master.hosted is not None
        return is_last and not self._spec.pod

    @property
    def _is_leaving(self) -> bool:
        return bool(self._error) or (self._signals.count > 0 and not self._ends_job)

    def _is_ready(self, spec: ProcessSpec) -> bool:
        return self._children.is_ready

    def _prepared(self, specs: Sequence[ProcessSpec]) -> Sequence[ProcessSpec]:
        return self._workers.commands(specs)

    def _started(self, spec: ProcessSpec, report: pb.RunningProcess) -> None:
        worker = self._workers.started(spec, report.pid)
        report.log, self._completed[worker.rank] = worker.log, False
        self._failures.pop(worker.rank, None)

    def _stop(self, order: pb.StopProcess) -> None:
        self._asked.add(order.id)
        super()._stop(order)

    def _say(self, answer: pb.NodeReportResponse) -> None:
        if not answer.leave:  # the end of the job is told once
            super()._say(answer)

    def _explain(self, ended: pb.EndedProcess) -> None:
        worker = self._workers.running.pop(ended.id)
        worker.code, worker.why = ended.code, ended.why
        worker.open_loop = ended.open_loop if ended.HasField("open_loop") else None
        completed = ended.code == 0 and worker.open_loop is None
        self._completed[worker.rank] = completed
        if ended.id in self._asked:
            del self._completed[worker.rank]
        elif not completed:
            failure = worker.failure()
            ended.error, ended.traceback = failure_text(self._spec.name, worker.rank, failure)
            if not self._drains:
                self._failures[worker.rank] = failure
                where = " inside its loop" if worker.open_loop is not None else ""
                how = describe_exit(ended.code) + f": {worker.why}" * bool(worker.why)
                log.warning("rank %d (pid %d) ended (%s)%s", worker.rank, worker.pid, how, where)
        worker.close()

    def _show(self, *, final: bool = False) -> None:
        if self._spec.show_output is not None:
            for worker, stream, line in self._workers.output(now=time.monotonic(), final=final):
                self._spec.show_output(worker, stream, line)

    def _follow(self, now: float) -> None:
        """Show the status of the job, and ask for the next one if it is due."""
        if self._status is not None and self._status.done():
            call, self._status = self._status, None
            try:
                status: pb.GetStatusResponse = call.result()
            except grpc.RpcError:  # requested again
                return
            for event in status.events:
                self._events_after = event.sequence
            self._spec.show_status(status)
        if self._status is None and now >= self._status_at:
            self._status_at = now + (_STATUS_SOON_S if self._is_done else _STATUS_EVERY_S)
            request = pb.GetStatusRequest(events_after=self._events_after)
            self._status = self._control.start(request, timeout_s=_CALL_S)

    def _heed_master(self) -> None:
        hosted = self._master.hosted
        if hosted is None:
            return
        if not self._problem:
            hosted.answered()
        ended = hosted.revive()
        if ended is not None and not self._leaves:
            if ended.code == 0:
                self._leaves = True
            else:
                self._error = hosted.cause() or f"the master ended ({ended})"

    def _heed_silence(self, now: float) -> None:
        silent_s, address = now - self._heard_at, self._master.address
        if silent_s < _SILENT_S:
            self._told_silence = False
        elif self._problem and not self._told_silence:
            self._told_silence = True
            how = f"has not answered for {silent_s:.0f} s, still waiting: {self._problem}"
            log.warning("the master at %s %s", address, how)
        if self._leaves or self._error or self._drains:
            return
        timeout_s = self._spec.join_timeout_s
        within = f"within {timeout_s:g} s (--rdzv-conf join_timeout)"
        late = not self._version and now - self._began_at >= timeout_s
        if self._is_done and silent_s > _DONE_SILENCE_S:
            self._leaves = True
        elif silent_s > self._away_s:
            self._error = (
                f"the master at {address}: no answer for {silent_s:.0f} s: {self._problem}"
            )
        elif late and self._why:
            self._error = f"{self._why}; none became free {within}"
        elif late:
            problem = self._problem or "the first call was not answered yet"
            self._error = f"the master at {address} never answered {within}: {problem}"
