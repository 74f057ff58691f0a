"""The agent of one machine: its loop, the answers of the master, signals, and the end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig

from torch_edl.config import Experiment
from torch_edl.errors import JobFailedError
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.agent.reporter import Reporter
from torch_edl.launch.agent.worker_group import WorkerGroup
from torch_edl.launch.agent.workers import (
    LocalWorker,
    Placement,
    Workers,
    failure_text,
    grace_s,
)
from torch_edl.launch.jobs.master_host import JobMaster
from torch_edl.launch.jobs.master_process import MasterProcess
from torch_edl.processes import preemption
from torch_edl.processes.signals import StopSignals, parse_signals
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.endpoint import free_port, own_address

log = logging.getLogger(__name__)

_POLL_S = 0.5
# Interval for reading the output of workers.
_LOOK_S = 0.1
# Poll interval while a replacement is due to start.
_POLL_FAST_S = 0.05
_MASTER_LEAVES_S = 10.0
# Time to wait for a silent master after all workers of this machine have completed the script.
_DONE_SILENCE_S = 30.0
# Time without an answer of the master after which the agent logs a warning and keeps waiting.
_SILENT_S = 30.0
# Time for a worker to leave after the job is over.
_OVER_GRACE_S = 30.0
_STOP_CALL_S = 2.0
# Time for the master to report the end of the job after the last worker has ended.
_FAREWELL_S = 3.0
# The same if the master may first write a last checkpoint of its servers.
_FAREWELL_STOPPING_S = 90.0


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """The task of an agent."""

    config: LaunchConfig
    """Configuration from torchrun; ``nproc_per_node`` workers are started on this machine."""
    command: Sequence[str]
    """Command of a worker."""
    name: str
    """Name of the script, for failure reports."""
    show_status: Callable[[pb.GetStatusResponse], None]
    """Shows the status of the job, with new events if this agent hosts the master."""
    show_output: Callable[[int, str, bytes], None] | None
    """Shows a line of a worker: rank, ``stdout`` or ``stderr``, and the line. None if the
    workers write to the terminal themselves."""
    experiment: Experiment
    """Experiment of this agent, which the master compares with those of other agents."""
    master: JobMaster
    silence_s: float
    """Seconds without an answer of the master after which this agent fails."""
    join_timeout_s: float
    """Seconds to wait for the minimum number of machines, and for a free slot."""
    notice: str | None = None
    """Notice of preemption after which this agent stops, see
    :func:`torch_edl.processes.preemption.watch`."""
    pod: str = ""
    """Name of an agent in a pod; empty on a machine. The master replaces the agent of a pod after
    its end; a signal then stops this agent only, and not the job."""


@dataclass(kw_only=True)
class _End:
    """How far the end of an agent has come."""

    reason: str = ""
    """Why all workers must end; empty while they should run."""
    job_is_stopped: bool = False
    is_hurried: bool = False
    error: str | None = None
    """Why the job failed, empty if it ended well; None: the job is not over."""
    stop_at: float | None = None
    """Time at which the workers of a job that ended well are stopped."""
    workers_ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None

    def is_complete(self, *, running: bool) -> bool:
        """Return True if the agent need not wait any longer, for a worker or for the master."""
        if running or not (self.reason or self.is_over):
            self.workers_ended_at = None
            return False
        if self.is_over:
            return True
        # The master must receive the report of the ends; it answers that the job is over.
        now = time.monotonic()
        if self.workers_ended_at is None:
            self.workers_ended_at = now
        waits = self.job_is_stopped and not self.is_hurried
        return now - self.workers_ended_at > (_FAREWELL_STOPPING_S if waits else _FAREWELL_S)


class LocalAgent:
    """Runs the workers of one machine until they end. Must be used from the main thread."""

    def __init__(self, spec: AgentSpec) -> None:
        self._spec = spec
        self._config = spec.config
        self._master = spec.master
        # Containers may share a host name, and then often have equal pids.
        id = uuid.uuid4().hex
        node = spec.pod or f"{socket.gethostname()}-{id[:8]}"
        self._placement: Placement | None = None
        self._nodes = 0
        """Number of machines in the job, from the last answer of the master; 0 before."""
        self.failure_code: int | None = None
        """Exit code of the first worker that failed; None if no worker made the job fail."""
        self._end = _End()
        self._grace_s = grace_s(spec.config)
        self._began = time.monotonic()
        self._silence_told = False
        # Unlike an event, it may be written to by the handler of a signal.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._group = WorkerGroup(
            Workers(spec.config, spec.command, spec.master.environment(node), wakes=self._wakes),
            wanted=spec.config.nproc_per_node,
            max_restarts=spec.config.max_restarts,
        )
        self._signals = StopSignals(
            parse_signals(spec.config.signals_to_handle, "--signals-to-handle"), wake=self._wake
        )
        master, address = spec.master, spec.config.local_addr
        self._stub = Stub(services.AGENTS + services.CONTROL, master.address, master.token)
        self._reporter = Reporter(
            self._stub,
            pb.AgentReportRequest(
                node=node,
                id=id,
                host=address or socket.gethostname(),
                experiment=pb.Experiment(**dataclasses.asdict(spec.experiment)),
                address=address or own_address(master.address),
                port=free_port(),
            ),
            wake=self._wake,
            show=spec.show_status,
            wants_events=master.hosted is not None,
        )

    def run(self) -> JobOutcome:
        """Run until all workers have ended.

        Returns:
            The outcome on this machine: ``failed`` if a worker failed and no restart is left,
            ``stopped`` after a signal.

        Raises:
            JobFailedError: the job ended elsewhere, or its master cannot be reached.
        """
        assert self._config.logs_specs is not None
        logs = self._config.logs_specs.root_log_dir
        # If another launcher started this agent, the failure is reported to that launcher.
        run = record(self._run) if "TORCHELASTIC_ERROR_FILE" in os.environ else self._run
        try:
            run()
        except ChildFailedError as error:
            text, _ = failure_text(self._spec.name, error.failures)
            self.failure_code = error.get_first_failure()[1].exitcode
            return JobOutcome(state="failed", status=None, error=text, logs=logs)
        # A signal after the end of the script stops nothing, if the master sees it in the same way.
        complete = self._group.is_done and self._end.error == ""
        signal_ = 0 if complete else self._signals.first
        state = "stopped" if signal_ else "finished"
        return JobOutcome(state=state, status=None, signal=signal_, logs=logs)

    def _run(self) -> None:
        self._signals.install()
        before = signal.signal(signal.SIGCHLD, lambda *_: self._wake())
        preemption.watch(lambda _: os.kill(os.getpid(), signal.SIGTERM), self._spec.notice)
        self._wake()
        try:
            while not self._end.is_complete(running=bool(self._group.workers.running)):
                self._wait()
                self._turn(time.monotonic())
            self._conclude()
        finally:
            self._group.workers.close()
            self._reporter.close()
            if self._master.hosted is not None:
                self._master.hosted.close(grace_s=_MASTER_LEAVES_S)
            self._master.leave()
            self._show(final=True)
            self._stub.close()
            signal.signal(signal.SIGCHLD, before)
            self._signals.restore()

    def _conclude(self) -> None:
        hosted, error = self._master.hosted, self._end.error
        if hosted is not None and error is not None:
            # The master leaves once its last status was fetched.
            hosted.wait(_MASTER_LEAVES_S, lambda: self._reporter.turn(time.monotonic()))
        if self._signals.count:
            return
        if self._group.failures:
            raise ChildFailedError(name=self._spec.name, failures=self._group.failures)
        if error:
            raise JobFailedError(error)

    def _show(self, *, final: bool = False) -> None:
        if self._spec.show_output is not None:
            for rank, stream, line in self._group.output(now=time.monotonic(), final=final):
                self._spec.show_output(rank, stream, line)

    # ---- one turn ----

    def _turn(self, now: float) -> None:
        self._heed_signals()
        self._take_ends(now)
        if self._master.hosted is not None:
            self._heed_master(self._master.hosted, now)
        response = self._reporter.turn(now)
        if response is not None:
            self._obey(response, now)
        self._show()
        self._heed_silence(now)
        self._heed_absence(now)
        if self._end.stop_at is not None and now >= self._end.stop_at:
            self._group.stop(grace_s=self._grace_s)
        ending = self._end.reason or self._group.heed_failures(grace_s=self._grace_s)
        placement = None if ending else self._placement
        if placement and self._group.balance(placement, grace_s=self._grace_s, now=now):
            self._tell()

    def _wait(self) -> None:
        look_s = _POLL_S if self._spec.show_output is None else _LOOK_S
        timeout_s = _POLL_FAST_S if self._group.is_replacing else look_s
        with contextlib.suppress(queue.Empty):
            self._wakes.get(timeout=timeout_s)

    def _wake(self) -> None:
        self._wakes.put(None)

    def _tell(
        self,
        ends: Sequence[LocalWorker] = (),
        *,
        done: bool = False,
        error: str = "",
        traceback: str = "",
    ) -> None:
        running = self._group.workers.running
        self._reporter.tell(running, ends, done=done, error=error, traceback=traceback)

    def _heed_signals(self) -> None:
        if not self._signals.count:
            return
        name, end = self._signals.name, self._end
        is_last = self._config.max_nodes == 1 or self._master.hosted is not None
        ends_job = is_last and not self._spec.pod
        if not end.reason:
            count = len(self._group.workers.running)
            log.warning("%s: stopping %d worker%s", name, count, "s" * (count != 1))
            if ends_job:
                # Sent first: the worker with the model asks the master if all others leave.
                request = pb.StopRequest(reason=name)
                with contextlib.suppress(grpc.RpcError):
                    self._stub.call(request, timeout_s=_STOP_CALL_S)
                end.job_is_stopped = True
            else:  # other machines continue the job
                self._tell(done=not self._spec.pod)
        if self._signals.count > 1 and ends_job and not end.is_hurried:
            end.is_hurried = True
            request = pb.StopRequest(reason=name, at_once=True)
            self._stub.start(request, timeout_s=_STOP_CALL_S)
        self._stop(name, at_once=self._signals.count > 1)

    def _take_ends(self, now: float) -> None:
        stopping = bool(self._end.reason)
        ends = self._group.reap(steps=self._reporter.steps, replaces=not stopping, now=now)
        if not ends:
            return
        error = trace = ""
        if self._group.failures and not stopping:
            error, trace = failure_text(self._spec.name, self._group.failures)
        # Reported at once, because other workers may be waiting for an ended worker.
        self._tell(ends, error=error, traceback=trace)
        if error:
            self._stop("failure")
        elif self._group.is_done:
            self._tell(done=True)
        for worker in ends:
            worker.close()

    def _heed_master(self, hosted: MasterProcess, now: float) -> None:
        ended = hosted.revive()
        if ended is not None:
            error = "" if ended.code == 0 else hosted.cause() or f"the master ended ({ended})"
            self._leave(error, now)

    def _obey(self, response: pb.AgentReportResponse, now: float) -> None:
        if self._master.hosted is not None:
            self._master.hosted.answered()
        first, self._nodes = not self._nodes, response.nodes
        has_place = response.node_rank < self._config.max_nodes and bool(response.master_addr)
        # As in torchrun, no worker starts before the minimum number of machines has joined.
        if has_place and (self._placement or response.nodes >= self._config.min_nodes):
            self._placement = Placement.of(response, self._config, before=self._placement)
        elif self._placement is None and first and response.nodes < self._config.min_nodes:
            log.info("waiting for machines: %d of at least %d joined", response.nodes,
                     self._config.min_nodes)  # fmt: skip
        elif self._placement is None and first:
            log.warning("%d machines joined before: waiting for a free place", response.node_rank)
        for pid in response.kill:
            log.warning("worker of pid %d declared lost by the master: killing it", pid)
            self._group.workers.kill(pid)
        if response.workers_wanted and response.nodes == 1:
            self._group.wanted = response.workers_wanted
        if response.over:
            self._leave(response.error, now)
        elif response.stopping and not self._end.reason:
            log.warning(
                "%s: stopping %d workers", response.stopping, len(self._group.workers.running)
            )
            self._end.job_is_stopped = True
            self._stop(response.stopping)

    def _heed_silence(self, now: float) -> None:
        silent_s = now - self._reporter.heard
        if silent_s < _SILENT_S:
            self._silence_told = False
        elif self._reporter.problem and not self._silence_told:
            self._silence_told = True
            how = f"has not answered for {silent_s:.0f} s, still waiting: {self._reporter.problem}"
            log.warning("the master at %s %s", self._master.address, how)
        error = self._reporter.refusal
        if not error and silent_s > self._spec.silence_s:
            error = f"no answer for {silent_s:.0f} s: {self._reporter.problem}"
        if error:
            self._leave(f"the master at {self._master.address}: {error}", now)
        elif self._group.is_done and silent_s > _DONE_SILENCE_S:
            self._leave("", now)

    def _heed_absence(self, now: float) -> None:
        """Leave if the job has not started in time because too few or too many machines joined."""
        timeout_s = self._spec.join_timeout_s
        if self._placement or self._end.reason or now - self._began < timeout_s:
            return
        least, most = self._config.min_nodes, self._config.max_nodes
        within = f"within {timeout_s:g} s (--rdzv-conf join_timeout)"
        if not self._nodes:
            problem = self._reporter.problem or "the first call was not answered yet"
            error = f"the master at {self._master.address} never answered {within}: {problem}"
        elif self._nodes < least:
            error = f"{self._nodes} of at least {least} machines joined {within}"
        else:
            error = f"--nnodes {least}:{most}: no place became free {within}"
        # The job ends with its master; without hosting the master, only this agent leaves.
        hosts = self._master.hosted is not None
        self._tell(done=not hosts, error=error if hosts else "")
        self._leave(error, now)

    # ---- the end ----

    def _stop(self, reason: str, *, at_once: bool = False) -> None:
        self._end.reason = self._end.reason or reason
        self._group.stop(grace_s=0 if at_once else self._grace_s)

    def _leave(self, error: str, now: float) -> None:
        """Record that the job is over, with its error if it failed. After success, workers have
        time to leave by themselves."""
        end = self._end
        if end.is_over:
            return
        end.error = error
        self._group.start_no_more()
        if error:
            self._stop(error)
        else:
            end.reason = end.reason or "the job is over"
            end.stop_at = now + _OVER_GRACE_S
