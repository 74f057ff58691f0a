"""The pods of a job: creates a pod for each spec, and reports how the pod fares.

:class:`torch_edl.plugins.kubernetes.master.pod_nodes.PodNodes` starts the processes in the pods.

The name of a pod is a function of the job, the role, the id and the
incarnation of the job's state, so a create that is repeated, even after a crash of the master,
finds the existing pod. Threads make the calls (``cluster/requests.py``) and follow the pods
(``cluster/watch.py``). These threads only fill a queue, which ``poll`` empties.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import (
    SETTLING_S,
    ClusterError,
    ExistsError,
    ForbiddenError,
    MissingError,
    QuotaError,
)
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState, end, progress, read_pod
from torch_edl.plugins.kubernetes.cluster.requests import Requests, settled
from torch_edl.plugins.kubernetes.cluster.watch import (
    Change,
    PodGone,
    PodsListed,
    PodWatch,
)
from torch_edl.plugins.kubernetes.names import Manifest
from torch_edl.processes.launcher import (
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRefused,
    ProcessSpec,
    ProcessWaits,
)

log = logging.getLogger(__name__)

# Seconds after the grace period until a pod is deleted without its node: a lost node does not
# confirm that a pod has ended.
_OVERDUE_S = 15.0
# Number of newest ended pods that are kept for their logs.
_ENDED_KEPT = 50
# Name of a quota that counts ended pods, too.
_COUNTS_ENDED = "count/pods"
# Seconds after which the log tells that the pods cannot be followed.
_AWAY_S = 10.0
_STOP_ALL_POLL_S = 0.05
_STOP_ALL_S = 60.0


@dataclass
class _Pod:
    role: str
    """Role of the process for which the pod was created."""
    id: int
    name: str
    created_at: float | None = None
    """Time at which the server confirmed that the pod exists; None before."""
    asked: bool = False
    """True if the job requested the deletion of the pod."""
    grace_s: float = 0.0
    forget_at: float | None = None
    """Time at which the pod is deleted without waiting for its node; None: never."""
    told: ProcessEvent | None = None


@dataclass(frozen=True)
class _Answer:
    """The outcome of a call; without an error, the call succeeded."""

    name: str
    error: ClusterError | None
    call: str
    """``create``, ``delete``, or ``forget``, which deletes without waiting for the node."""
    again: bool = False
    """True if the call will be repeated."""


class KubernetesLauncher:
    """Creates a pod for each spec; in events, the process stands for its pod.

    Args:
        job: name of the job.
        incarnation: incarnation of the job's state; pods of other incarnations are deleted.
        manifest: returns the manifest of the pod of a process.
        forbidden_s: seconds for which a rejected call is repeated if no call of the kind ever
            succeeded. A call that succeeded before is repeated without end.
    """

    def __init__(
        self,
        api: Api,
        *,
        job: str,
        incarnation: str,
        manifest: Callable[[ProcessSpec], Manifest],
        forbidden_s: float = SETTLING_S,
    ) -> None:
        self._api = api
        self._job = job
        self._incarnation = incarnation
        self._manifest = manifest
        self._selector = names.processes(job)
        self._pods: dict[str, _Pod] = {}
        self._names: dict[tuple[str, int], str] = {}  # also of processes that have ended
        self._ended: deque[str] = deque()
        self._untold: list[ProcessEvent] = []
        self._deleted: set[str] = set()  # pods of other incarnations
        self._forbidden_s = forbidden_s
        self._made: set[str] = set()  # roles whose pods the server has created
        self._news: queue.SimpleQueue[Change | _Answer | ClusterError] = queue.SimpleQueue()
        self._requests = Requests()
        self._watch: PodWatch | None = None
        self._away_since: float | None = None
        """Time of the first failure of the watch since its last news; None if there was none."""
        self._has_warned = False

    def start(self, spec: ProcessSpec) -> None:
        """Request a pod."""
        name = names.pod(self._job, spec.role, spec.id, self._incarnation)
        assert name not in self._pods, f"{spec.name} was started before"
        self._take(_Pod(spec.role, spec.id, name))
        manifest = self._manifest(spec)
        assert manifest["metadata"]["name"] == name
        self._follow()
        patience_s = functools.partial(self._patience_s, spec.role)
        self._submit(name, "create", lambda: self._create(name, manifest), patience_s)

    def adopt(self, known: Sequence[Known]) -> None:
        """Take over the existing pods of these processes. A process without a pod has
        ended if it is known to have run; otherwise it never started.

        Raises:
            ClusterError: the cluster does not answer for a minute.
        """
        listed, _ = settled(
            lambda: self._api.list("Pod", self._selector, read=read_pod),
            forbidden_s=self._forbidden_s,
        )
        there = {pod.name for pod in listed}
        for each in known:
            name = names.pod(self._job, each.role, each.id, self._incarnation)
            if name in there or each.ran:
                # The first list of the watch reports the pods that do not exist.
                self._take(_Pod(each.role, each.id, name, created_at=time.monotonic()))
                self._made.add(each.role)
            else:
                self._untold.append(ProcessNotStarted(role=each.role, id=each.id))
        self._follow()

    def poll(self) -> list[ProcessEvent]:
        """Return the events since the last call."""
        events, self._untold = self._untold, []
        with contextlib.suppress(queue.Empty):
            while True:
                match self._news.get_nowait():
                    case _Answer() as answer:
                        events += self._answered(answer)
                    case ClusterError() as error:
                        events += self._blind(error)
                    case change:
                        events += self._changed(change)
        now = time.monotonic()
        for late in self._pods.values():
            if late.forget_at is not None and now >= late.forget_at:
                late.forget_at = None
                log.warning(
                    "pod %s did not end in time: deleting it without its grace period", late.name
                )
                self._delete(late.name, 0.0)
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Delete a pod: its node sends SIGTERM, and SIGKILL ``grace_s`` seconds later.

        With 0, the pod is deleted at once, even if its node is unreachable.
        """
        pod = self._pods.get(self._names.get((role, id), ""))
        if pod is None or (pod.asked and grace_s >= pod.grace_s):
            return
        pod.asked, pod.grace_s = True, grace_s
        if grace_s > 0:
            pod.forget_at = time.monotonic() + grace_s + _OVERDUE_S
        if pod.created_at is not None:
            self._delete(pod.name, grace_s)
        else:  # the answer to the create is pending and decides
            self._requests.hurry(pod.name)

    def stop_all(self, *, grace_s: float) -> None:
        """Delete all pods, and wait until they are gone, for a minute beyond ``grace_s``.

        Pods that remain are deleted together with the master's Job.
        """
        for pod in list(self._pods.values()):
            self.stop(pod.role, pod.id, grace_s=grace_s)
        deadline = time.monotonic() + _STOP_ALL_S + grace_s
        while self._pods and time.monotonic() < deadline:
            self.poll()
            time.sleep(_STOP_ALL_POLL_S)

    def close(self) -> None:
        """Stop the threads. The pods stay for the next master, or until the Job is deleted."""
        self._requests.close()
        if self._watch is not None:
            self._watch.close()

    def log_path(self, role: str, id: int) -> str:
        """Return ``pod/NAME``, as ``kubectl logs`` takes it; empty for an unknown process."""
        name = self._names.get((role, id))
        return f"pod/{name}" if name else ""

    # ---- calls to the API ----

    def _take(self, pod: _Pod) -> None:
        self._pods[pod.name] = pod
        self._names[pod.role, pod.id] = pod.name

    def _follow(self) -> None:
        """Start to follow the pods, once the first pod of this job is known."""
        if self._watch is None:
            self._watch = PodWatch(self._api, self._selector, news=self._news.put)

    def _submit(
        self,
        name: str,
        call: str,
        make: Callable[[], None],
        patience_s: Callable[[ClusterError], float],
    ) -> None:
        def answered(error: ClusterError | None, *, again: bool = False) -> None:
            self._news.put(_Answer(name, error, call, again))

        self._requests.submit(
            make,
            about=name,
            done=answered,
            delayed=lambda error: answered(error, again=True),
            patience_s=patience_s,
        )

    def _patience_s(self, role: str, error: ClusterError) -> float:
        """Return the seconds for which a rejected create is repeated.

        A call that succeeded before may succeed again; the rest of the job continues meanwhile.
        """
        if isinstance(error, ForbiddenError):
            return math.inf if self._made else self._forbidden_s
        return math.inf if role in self._made else 0.0

    def _create(self, name: str, manifest: Manifest) -> None:
        pod = self._pods.get(name)
        if pod is not None and pod.asked:
            return  # a pod whose create succeeded without an answer is deleted by _delete
        # Raised if an earlier create succeeded and its answer was lost.
        with contextlib.suppress(ExistsError):
            self._api.create(manifest)

    def _delete(self, name: str, grace_s: float) -> None:
        delete = functools.partial(self._api.delete, "Pod", name, grace_s=math.ceil(grace_s))
        call = "delete" if grace_s > 0 else "forget"
        self._submit(name, call, delete, lambda error: self._forbidden_s)

    # ---- what the answers mean ----

    def _answered(self, answer: _Answer) -> list[ProcessEvent]:
        pod, error = self._pods.get(answer.name), answer.error
        if answer.call != "create":
            if isinstance(error, MissingError):
                # The pod never existed, or its end was not received yet.
                return [] if pod is None else [self._gone(pod)]
            if error is None:
                return [self._gone(pod)] if pod is not None and answer.call == "forget" else []
            if answer.again:
                return []
            log.warning("pod %s cannot be deleted: %s", answer.name, error)
            return [] if pod is None else [self._gone(pod)]
        if pod is None:
            return []
        if error is None:
            self._made.add(pod.role)
            pod.created_at = time.monotonic()
            if pod.asked:
                self._delete(pod.name, pod.grace_s)
            return []
        if not answer.again:
            return self._refused(pod, error)
        placed = not isinstance(error, QuotaError)
        if not placed and _COUNTS_ENDED in str(error):
            # Ended pods, which are kept for their logs, take the room of this one.
            while self._ended:
                self._delete(self._ended.popleft(), 0.0)
        return self._tell(
            pod, ProcessWaits(role=pod.role, id=pod.id, why=f"no pod yet: {error}", placed=placed)
        )

    def _refused(self, pod: _Pod, error: ClusterError) -> list[ProcessEvent]:
        """Return the events for a pod that the server refuses to create."""
        if pod.asked:
            return [self._gone(pod)]
        del self._pods[pod.name]
        return [
            ProcessRefused(role=pod.role, id=pod.id, why=str(error)),
            ProcessExit(
                role=pod.role, id=pod.id, why="its pod could not be created", own_fault=False
            ),
        ]

    def _blind(self, error: ClusterError) -> list[ProcessEvent]:
        """Return the events after the watch failed. A process that was never allowed to list pods
        reports, after a while, that one of its pods is refused."""
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since >= _AWAY_S and not self._has_warned:
            log.warning("the pods cannot be followed: %s; the job goes on, trying again", error)
            self._has_warned = True
        assert self._watch is not None
        if not isinstance(error, ForbiddenError) or self._watch.listed.is_set():
            return []
        first = next((pod for pod in self._pods.values() if not pod.asked), None)
        if first is None or now - self._away_since < self._forbidden_s:
            return []
        return [ProcessRefused(role=first.role, id=first.id, why=str(error))]

    def _changed(self, change: Change) -> list[ProcessEvent]:
        if self._has_warned:
            log.warning("the pods are followed again")
        self._away_since, self._has_warned = None, False
        if isinstance(change, PodsListed):
            return self._listed(change)
        return self._seen(change.pod, gone=isinstance(change, PodGone))

    def _seen(self, state: PodState, *, gone: bool) -> list[ProcessEvent]:
        pod = self._pods.get(state.name)
        if pod is None:
            self._stranger(state, gone=gone)
            return []
        pod.created_at = time.monotonic() if pod.created_at is None else pod.created_at
        exit = end(state, pod.role, pod.id, gone=gone, asked=pod.asked)
        if exit is None:
            return self._tell(pod, progress(state, pod.role, pod.id))
        del self._pods[pod.name]
        if not gone:
            self._ended.append(pod.name)
            if len(self._ended) > _ENDED_KEPT:
                self._delete(self._ended.popleft(), 0.0)
        return [exit]

    def _listed(self, listed: PodsListed) -> list[ProcessEvent]:
        """Return the exits of pods that were deleted while no watch was running."""
        lost = [
            pod
            for pod in self._pods.values()
            if pod.created_at is not None
            and pod.created_at < listed.began
            and pod.name not in listed.names
        ]
        return [self._gone(pod) for pod in lost]

    def _gone(self, pod: _Pod) -> ProcessExit:
        """Return the exit of a pod that is gone without a known cause."""
        del self._pods[pod.name]
        if pod.asked:
            return ProcessExit(role=pod.role, id=pod.id, code=128 + signal.SIGTERM)
        return ProcessExit(role=pod.role, id=pod.id, why="its pod was deleted", own_fault=False)

    def _stranger(self, state: PodState, *, gone: bool) -> None:
        """Delete a running pod that the master does not know: an idle pod of an earlier master, or
        a pod of an earlier incarnation."""
        if gone:
            self._deleted.discard(state.name)
        elif not state.ended and state.name not in self._deleted:
            self._deleted.add(state.name)
            if not state.deleting:
                log.warning("pod %s has no process of this job: deleting it", state.name)
                self._delete(state.name, 0.0)

    def _tell(self, pod: _Pod, event: ProcessEvent) -> list[ProcessEvent]:
        if event == pod.told:
            return []
        pod.told = event
        return [event]
