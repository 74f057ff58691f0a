"""Follows a job on a cluster: state of its master's pod, events, progress, Ctrl-C and outcome."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import grpc

from torch_edl.cli.follow import SILENT_S, MasterStatus, as_reported
from torch_edl.cli.progress import Display
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs.folder import ENDED
from torch_edl.launch.jobs.logs import shown, text_of, text_of_line
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client.cluster_job import ClusterJob, MasterConnection
from torch_edl.plugins.kubernetes.client.logs import PodOutput, by_process
from torch_edl.plugins.kubernetes.cluster import pod_state as causes
from torch_edl.plugins.kubernetes.cluster.failures import (
    SETTLING_S,
    ClusterError,
    ForbiddenError,
    MissingError,
    NoAnswerError,
)
from torch_edl.plugins.kubernetes.cluster.watch import PodWatch
from torch_edl.processes.launcher import ProcessRefused, ProcessWaits
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb

_POLL_S = 0.2
_CALL_TIMEOUT_S = 5.0
# Seconds between two looks at the Job while its master has no pod or is silent.
_LOOK_S = 2.0
# Seconds between two calls if the first one failed.
_AGAIN_S = 1.0
# Maximum number of pods whose output is shown; torch-edl logs reads any.
_MOST_OUTPUTS = 32
# Seconds without a new line after which the output of an ended job is complete.
_REST_S = 2.0
_PENDING = "pending"
_POD = "pod/"
# Seconds for which a pod must be pending before its events are read, and between two reads.
_EXPLAIN_S = 10.0
USAGE_CODE = 2


@dataclass(kw_only=True)
class ClusterFollower:
    """Follows a job until it is over or the user leaves.

    Args:
        leaves: True: Ctrl-C leaves the job running. False: Ctrl-C stops the job, as on one machine.
    """

    job: ClusterJob
    display: Display
    signals: StopSignals
    leaves: bool
    _watch: PodWatch = field(init=False)
    _connection: MasterConnection | None = None
    _status: MasterStatus = field(init=False)
    _told: set[str] = field(default_factory=set)
    _looked: float = field(default_factory=time.monotonic)
    _rejected_at: float | None = None
    _blind: bool = False
    """True if this user may not forward ports, so that the master cannot be reached."""
    _signals_seen: int = 0
    _refused: str = ""
    _over: bool = False
    _pending: dict[str, float] = field(default_factory=dict)
    """Monotonic time from which each pod was seen to be pending."""
    _explained_at: float = field(default_factory=time.monotonic)
    _output: PodOutput = field(init=False)

    def __post_init__(self) -> None:
        self._output = PodOutput(self.job.api, most=_MOST_OUTPUTS)
        self._status = MasterStatus(self.display, self.signals, _CALL_TIMEOUT_S)

    def follow(self, *, only_start: bool = False) -> JobOutcome | None:
        """Wait for the end of the job.

        Args:
            only_start: True to wait for the first answer of the master only.

        Returns:
            The outcome of the job; None if the job runs on.

        Raises:
            ClusterError: the cluster rejects a request that following needs.
        """
        # Only the master's pod is watched: a job may have thousands, and the master reports on
        # them.
        selector = f"{names.selector(self.job.name)},{names.ROLE}=master"
        self._watch = PodWatch(self.job.api, selector)
        try:
            while not self._over:
                self._hear()
                self._ask()
                self._show(self._output.new())
                answered = self._status.newest is not None or self._blind
                if self._wants_to_leave() or (only_start and answered):
                    return None
                time.sleep(_POLL_S)
            self._show(self._output.rest(_REST_S))
            return self._outcome()
        finally:
            self._watch.close()
            self._output.close()
            if self._connection is not None:
                self._connection.close()
            self.display.close()

    # ---- what the cluster says of the master's pod ----

    def _hear(self) -> None:
        if (error := self._watch.error) is not None:
            # If an established watch is rejected, _ask() decides how long to keep trying.
            rejected = isinstance(error, ForbiddenError) and self._watch.listed.is_set()
            if not (rejected or isinstance(error, NoAnswerError)):
                raise error
            self._tell("watch", f"{error}; still trying")
        pod = self._pod()
        if pod is None or pod.running or pod.ended:
            return
        how = causes.progress(pod, "master", 0)
        if isinstance(how, ProcessRefused):
            self._refused = how.why
            self._over = True
        elif isinstance(how, ProcessWaits) and how.why:
            self._tell(how.fix, f"the master waits: {how.why}; {how.fix}")
        else:
            self._explain({"the master": pod.name})

    def _show(self, lines: Iterable[tuple[causes.PodState, bytes]]) -> None:
        for pod, raw in lines:
            name, own = by_process(pod, raw)
            line = shown(text_of(own), own=not self.display.is_stopped)
            if line is not None:
                self.display.line(name, line)

    def _pod(self) -> causes.PodState | None:
        """Return the pod of the current master: the running one, or else the one that may run."""
        pods = self._watch.pods()
        # Of equals, the pod that appeared last.
        return max(reversed(pods), key=lambda pod: (*pod.standing, not pod.ended), default=None)

    def _ask(self) -> None:
        """Ask the master and, if it is silent, the cluster.

        The cluster may reject requests for as long as the restart of an API server takes.
        """
        try:
            self._poll()
            self._look()
        except (NoAnswerError, ForbiddenError) as error:
            now = time.monotonic()
            if isinstance(error, NoAnswerError):
                self._rejected_at = None
            elif self._rejected_at is None:
                self._rejected_at = now
            elif now - self._rejected_at >= SETTLING_S:
                raise
            self._tell("cluster", f"{error}; still trying")
            time.sleep(max(_AGAIN_S, error.retry_after_s))

    def _look(self) -> None:
        """Read the Job from the cluster while the master has no running pod or is silent."""
        pod = self._pod()
        now = time.monotonic()
        quiet = pod is None or not pod.running or self._status.silent_s > SILENT_S
        if not self._watch.listed.is_set() or not quiet or now - self._looked < _LOOK_S:
            return
        self._looked = now
        if not self.job.refresh():
            self._over, self._refused = True, self._refused or "the job was deleted"
            return
        self._rejected_at = None
        if self.job.is_over():
            self._over = True
        elif self.job.is_suspended and (pod is None or not pod.running):
            why = self.job.why_suspended()
            self._tell("suspended", f"the job has no processes: {why}")
        elif pod is None and (why := self.job.why_no_pod()):
            self._tell("no pod", f"the master has no pod: {why}")
        elif pod is not None and (why := self.job.why_stuck(pod)):
            self._tell(why, f"the master has not answered for {SILENT_S:.0f} s: {why}")
        elif pod is not None and pod.ended and pod.exit_code != 0:  # the Job is over soon
            how = causes.end(pod, "master", 0, gone=False)
            why = text_of_line(how.why) if how is not None else ""
            why = why or f"exit code {pod.exit_code}"
            self._tell(pod.uid, f"the master has ended, and is started again: {why}")

    def _tell(self, about: str, text: str) -> None:
        """Print a note once per topic; an image that cannot be pulled alternates between two
        texts."""
        if about not in self._told:
            self._told.add(about)
            self.display.note(text)

    # ---- what the master says ----

    def _poll(self) -> None:
        pod = self._pod()
        if pod is None or not pod.running or self._blind:
            return
        if self._connection is None or self._connection.pod != pod.name:
            if self._connection is not None:
                self._connection.close()
            self._connection = self.job.connect(pod.name)
            self._status.connect(self._connection.stub)
        first = self._status.newest is None
        error = self._status.ask()
        if error is not None:
            self._is_silent(self._connection.error, error)
            return
        assert self._status.newest is not None
        # Output from before an attach is not repeated; torch-edl logs has it.
        tail = 0 if self.leaves and first else None
        for process in self._status.newest.processes:
            if process.role != "master" and process.state != _PENDING:
                self._saw(process, tail)
        self._explain(
            {
                f"{each.role}-{each.id}": each.log.removeprefix(_POD)
                for each in reversed(self._status.newest.processes)
                if each.state == _PENDING and each.log.startswith(_POD)
            }
        )
        self._over = self._over or self._status.is_over

    def _explain(self, pending: Mapping[str, str]) -> None:
        """Print why pods that have a node do not start, such as a missing volume. Only events
        contain these reasons. The oldest pod of a role represents the others.

        Args:
            pending: names of pods by the names of their processes, the oldest of a role last.
        """
        now = time.monotonic()
        self._pending = {pod: self._pending.get(pod, now) for pod in pending.values()}
        if now < self._explained_at + _EXPLAIN_S:
            return
        self._explained_at = now
        oldest = {name.rpartition("-")[0]: (name, pod) for name, pod in pending.items()}
        for role, (name, pod) in oldest.items():
            if now - self._pending[pod] < _EXPLAIN_S:
                continue
            with contextlib.suppress(NoAnswerError):
                if why := self.job.why_no_volume(pod):
                    self._tell(f"{role} {why}", f"{name} waits: {why}")

    def _saw(self, process: pb.ProcessStatus, tail: int | None) -> None:
        """Show the output of a process if the process ran or runs in a pod."""
        if name := process.log.removeprefix(_POD) if process.log.startswith(_POD) else "":
            # Names of pods are unique within a job.
            pod = causes.PodState(
                name=name,
                uid=name,
                role=process.role,
                id=process.id,
                running=True,
            )
            self._output.saw(pod, tail=tail)

    def _is_silent(self, cause: ClusterError | None, error: grpc.RpcError) -> None:
        """Handle a failed call; a pod that just ended or a master that is starting is ignored."""
        if isinstance(cause, ForbiddenError):
            if self._status.newest is None:
                self._tell("port", f"{cause}; without it, the progress of the job is not shown")
                self._blind = self._status.silent_s >= SETTLING_S
        elif cause is not None and not isinstance(cause, (NoAnswerError, MissingError)):
            raise cause
        if self._blind and self._connection is not None:
            self._connection.close()
            self._connection = None
        else:
            self._status.note_silence(str(cause or error.code().name.lower()))

    # ---- what the user says ----

    def _wants_to_leave(self) -> bool:
        """Handle new signals, and return True if this client leaves the job running."""
        new, self._signals_seen = self.signals.count - self._signals_seen, self.signals.count
        if not new:
            return False
        if self.leaves or self.signals.name != "SIGINT":
            return True
        error = self._connection.error if self._connection is not None else None
        blind = self._blind or isinstance(error, ForbiddenError)
        if blind and self.signals.count == 1 and self._stop_unreached():
            return False
        unknown = self._connection is None or self._status.newest is None
        if unknown or self.signals.count > 2:
            self.display.note(f"{self.signals.name}: deleting the job")
            self.job.remove()
            self._over = True
            return False
        again = "; Ctrl-C again ends it at once" if self.signals.count == 1 else ""
        self.display.note(f"{self.signals.name}: stopping the job{again}")
        self._status.stop(at_once=self.signals.count > 1)
        return False

    def _stop_unreached(self) -> bool:
        """Stop the job through its Job object, and return True if that is possible."""
        pod = self._pod()
        if pod is None or not pod.running:
            return False
        try:
            self.job.stop_unreached()
        except ClusterError as error:
            self.display.note(f"the job cannot be stopped with a last checkpoint: {error}")
            return False
        self.display.note(f"{self.signals.name}: stopping the job; Ctrl-C again deletes it")
        return True

    def _outcome(self) -> JobOutcome:
        pod = self._pod()
        # The job ended between two calls, or this client could not reach the master.
        with contextlib.suppress(NoAnswerError, ForbiddenError):
            self.job.refresh()
        status = self.job.final(pod) or self._status.newest
        seen = JobOutcome(
            state="failed",
            status=status,
            signal=self.signals.first,
            master_exit="" if pod is None or pod.exit_code is None else str(pod.exit_code),
            logs=self.job.logs,
        )
        if status is not None and status.state in ENDED:
            return as_reported(seen, status)
        if self._refused:
            return replace(seen, error=self._refused, usage_error=True)
        if self.signals.count and not self.leaves:
            return replace(seen, state="stopped")
        state, error = self.job.state(pod)
        usage = pod is not None and pod.exit_code == USAGE_CODE
        cause = self.display.held[-1].text if self.display.held else error
        return replace(
            seen,
            state=state if state in ENDED else "failed",
            error=cause or "the master of the job ended unexpectedly",
            usage_error=usage,
        )
