"""The processes of a job as pods: :class:`torch_edl.processes.launcher.Launcher` on a cluster.

A process is one pod, whose name is a function of the job, the role, the id and the incarnation of
the job's state: a create that is repeated, after a crash of the master too, finds the pod there.
Threads make the calls (:mod:`torch_edl.kubernetes.requests`), and one follows the pods
(:mod:`torch_edl.kubernetes.watch`); they only fill a queue, which ``poll`` empties.
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
from typing import Any, Protocol

from torch_edl.kubernetes import names
from torch_edl.kubernetes.failures import (
    SETTLING_S,
    ClusterError,
    ExistsError,
    ForbiddenError,
    MissingError,
    QuotaError,
)
from torch_edl.kubernetes.pod_state import PodState, end, progress, read_pod
from torch_edl.kubernetes.requests import Requests, settled
from torch_edl.kubernetes.watch import Change, Follower, PodGone, PodSeen, PodsListed, PodSource
from torch_edl.processes.launcher import Known
from torch_edl.processes.spec import (
    ProcessEvent,
    ProcessExit,
    ProcessRefused,
    ProcessSpec,
    ProcessWaits,
)

log = logging.getLogger(__name__)

Manifest = dict[str, Any]
_Patience = Callable[[ClusterError], float]

# A node that is lost does not say that a pod has ended: then the pod is forgotten.
_OVERDUE_S = 15.0
# Pods that have ended stay for their logs, the newest ones.
_ENDED_KEPT = 50
_STOP_ALL_POLL_S = 0.05
_STOP_ALL_S = 60.0


class PodApi(PodSource, Protocol):
    """What of :class:`torch_edl.kubernetes.api.Api` a launcher needs."""

    def create(self, manifest: Manifest) -> Manifest: ...

    def delete(self, kind: str, name: str, *, grace_s: int | None = None) -> None: ...


@dataclass
class _Pod:
    role: str
    """Of the process today."""
    id: int
    name: str
    made_for: str
    """The role of the process for which the pod is made."""
    created_at: float | None = None
    """When the server has said that the pod is there; None: it has not yet."""
    asked: bool = False
    """The pod is to be deleted."""
    grace_s: float = 0.0
    forget_at: float | None = None
    """When it is deleted without waiting for its node."""
    told: ProcessEvent | None = None


@dataclass(frozen=True)
class _Answer:
    """What came of a call; without an error, it was done."""

    name: str
    error: ClusterError | None
    call: str
    """``create``, ``delete``, or ``forget``: delete without waiting for the node."""
    again: bool = False
    """The call will be made again."""


class KubernetesLauncher:
    """Makes a pod for each process.

    Args:
        job: name of the job.
        incarnation: of the job's state: pods of another one are strangers, and are deleted.
        manifest: makes the manifest of a process.
        clock: monotonic.
        forbidden_s: seconds for which a call is repeated that this process may not make, and has
            never made. A call that it has made before is repeated without end.
    """

    def __init__(
        self,
        api: PodApi,
        *,
        job: str,
        incarnation: str,
        manifest: Callable[[ProcessSpec], Manifest],
        clock: Callable[[], float] = time.monotonic,
        forbidden_s: float = SETTLING_S,
    ) -> None:
        self._api = api
        self._job = job
        self._incarnation = incarnation
        self._manifest = manifest
        self._clock = clock
        self._selector = f"{names.selector(job)},{names.ROLE} in (worker,ps,agent)"
        self._pods: dict[str, _Pod] = {}
        self._names: dict[tuple[str, int], str] = {}  # also of processes that have ended
        self._ended: deque[str] = deque()
        self._deleted: set[str] = set()  # strangers
        self._forbidden_s = forbidden_s
        self._made: set[str] = set()  # roles of which the server has made pods
        self._news: queue.SimpleQueue[Change | _Answer | ForbiddenError] = queue.SimpleQueue()
        self._requests = Requests()
        self._follower: Follower | None = None

    def start(self, spec: ProcessSpec) -> int:
        """Asks for a pod; returns 0, since its process has no pid here."""
        name = names.pod(self._job, spec.role, spec.id, self._incarnation)
        assert name not in self._pods, f"{spec.name} was started before"
        self._take(_Pod(spec.role, spec.id, name, spec.role))
        manifest = self._manifest(spec)
        assert manifest["metadata"]["name"] == name
        self._follow()
        patience_s = functools.partial(self._patience_s, spec.role)
        self._submit(name, "create", lambda: self._create(name, manifest), patience_s)
        return 0

    def adopt(self, known: Sequence[Known]) -> dict[tuple[str, int], Known | None]:
        """Takes over the pods that are there of these processes.

        Raises:
            ClusterError: the cluster does not answer for a minute.
        """
        listed, _ = settled(
            lambda: self._api.list("Pod", self._selector, read=read_pod),
            forbidden_s=self._forbidden_s,
        )
        there = {pod.name for pod in listed}
        taken: dict[tuple[str, int], Known | None] = {}
        for each in known:
            role, _, id = (each.started_as or f"{each.role}-{each.id}").partition("-")
            name = names.pod(self._job, role, int(id), self._incarnation)
            taken[each.role, each.id] = each if name in there or each.ran else None
            if name in there or each.ran:
                # One that is not there is found missing by the first list of the watch.
                self._take(_Pod(each.role, each.id, name, role, created_at=self._clock()))
                self._made.add(role)
        self._follow()
        return taken

    def poll(self) -> list[ProcessEvent]:
        """What has happened since the last call."""
        events: list[ProcessEvent] = []
        with contextlib.suppress(queue.Empty):
            while True:
                match self._news.get_nowait():
                    case _Answer() as answer:
                        events += self._answered(answer)
                    case PodSeen(pod):
                        events += self._seen(pod, gone=False)
                    case PodGone(pod):
                        events += self._seen(pod, gone=True)
                    case PodsListed() as listed:
                        events += self._listed(listed)
                    case ForbiddenError() as error:
                        events += self._blind(error)
        now = self._clock()
        for late in self._pods.values():
            if late.forget_at is not None and now >= late.forget_at:
                late.forget_at = None
                log.warning("pod %s has not ended in time: it is forgotten", late.name)
                self._delete(late.name, 0.0)
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Deletes a pod: its node sends SIGTERM, and SIGKILL ``grace_s`` later. 0: the pod is
        forgotten, whether its node can be reached or not."""
        pod = self._pods.get(self._names.get((role, id), ""))
        if pod is None or (pod.asked and grace_s >= pod.grace_s):
            return
        pod.asked, pod.grace_s = True, grace_s
        if grace_s > 0:
            pod.forget_at = self._clock() + grace_s + _OVERDUE_S
        if pod.created_at is not None:
            self._delete(pod.name, grace_s)
        else:  # it is known soon whether there is a pod
            self._requests.hurry(pod.name)

    def rename(self, role: str, id: int, to_role: str, to_id: int) -> None:
        """A process has another role from now on, in the same pod."""
        name = self._names.get((role, id), "")
        self._names[to_role, to_id] = name
        if (pod := self._pods.get(name)) is not None:
            pod.role, pod.id, pod.told = to_role, to_id, None

    def stop_all(self, *, grace_s: float) -> None:
        """Deletes all pods, and waits a minute at most until they are gone: what is left then goes
        with the Job of the master."""
        for pod in list(self._pods.values()):
            self.stop(pod.role, pod.id, grace_s=grace_s)
        deadline = time.monotonic() + _STOP_ALL_S + grace_s
        while self._pods and time.monotonic() < deadline:
            self.poll()
            time.sleep(_STOP_ALL_POLL_S)

    def close(self) -> None:
        """Leaves the pods as they are, to the next master or to the deletion of the Job."""
        self._requests.close()
        if self._follower is not None:
            self._follower.close()

    def log_path(self, role: str, id: int) -> str:
        """``pod/NAME``, as ``kubectl logs`` takes it; empty: not a process of this launcher."""
        name = self._names.get((role, id))
        return f"pod/{name}" if name else ""

    # ---- what is asked of the API ----

    def _take(self, pod: _Pod) -> None:
        self._pods[pod.name] = pod
        self._names[pod.role, pod.id] = pod.name

    def _follow(self) -> None:
        """Begins to follow the pods, when it is known which are ours."""
        if self._follower is None:
            self._follower = Follower(
                self._api, self._selector, news=self._news.put, forbidden_s=self._forbidden_s
            )

    def _submit(
        self, name: str, call: str, make: Callable[[], None], patience_s: _Patience
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
        """How long the creation of a pod is repeated that the server rejects. What was possible
        before may be possible again: the rest of the job goes on meanwhile."""
        if isinstance(error, ForbiddenError):
            return math.inf if self._made else self._forbidden_s
        return math.inf if role in self._made else 0.0

    def _create(self, name: str, manifest: Manifest) -> None:
        pod = self._pods.get(name)
        if pod is not None and pod.asked:
            return  # one that was made in vain, and was not heard of, is deleted
        with contextlib.suppress(ExistsError):  # by a call before, whose answer was lost
            self._api.create(manifest)

    def _delete(self, name: str, grace_s: float) -> None:
        delete = functools.partial(self._api.delete, "Pod", name, grace_s=math.ceil(grace_s))
        call = "delete" if grace_s > 0 else "forget"
        self._submit(name, call, delete, lambda error: self._forbidden_s)

    # ---- what it means ----

    def _answered(self, answer: _Answer) -> list[ProcessEvent]:
        pod, error = self._pods.get(answer.name), answer.error
        if answer.call != "create":
            if isinstance(error, MissingError):
                # It never was there, or its end was not heard of yet.
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
            self._made.add(pod.made_for)
            pod.created_at = self._clock()
            if pod.asked:
                self._delete(pod.name, pod.grace_s)
            return []
        if not answer.again:
            return self._refused(pod, error)
        placed = not isinstance(error, QuotaError)
        return self._tell(
            pod, ProcessWaits(role=pod.role, id=pod.id, why=f"no pod yet: {error}", placed=placed)
        )

    def _refused(self, pod: _Pod, error: ClusterError) -> list[ProcessEvent]:
        """The server will not make a pod."""
        if pod.asked:
            return [self._gone(pod)]
        self._forget(pod)
        return [
            ProcessRefused(role=pod.role, id=pod.id, why=str(error)),
            ProcessExit(role=pod.role, id=pod.id, why="it has no pod", own_fault=False),
        ]

    def _blind(self, error: ForbiddenError) -> list[ProcessEvent]:
        """This process may not follow the pods."""
        first = next((pod for pod in self._pods.values() if not pod.asked), None)
        return [ProcessRefused(role=first.role, id=first.id, why=str(error))] if first else []

    def _seen(self, state: PodState, *, gone: bool) -> list[ProcessEvent]:
        pod = self._pods.get(state.name)
        if pod is None:
            self._stranger(state, gone=gone)
            return []
        pod.created_at = self._clock() if pod.created_at is None else pod.created_at
        exit = end(state, pod.role, pod.id, gone=gone, asked=pod.asked)
        if exit is None:
            return self._tell(pod, progress(state, pod.role, pod.id))
        self._forget(pod)
        if not gone:
            self._keep(pod.name)
        return [exit]

    def _listed(self, listed: PodsListed) -> list[ProcessEvent]:
        """Finds pods that came and went while nobody looked."""
        lost = [
            pod
            for pod in self._pods.values()
            if pod.created_at is not None
            and pod.created_at < listed.began
            and pod.name not in listed.names
        ]
        return [self._gone(pod) for pod in lost]

    def _gone(self, pod: _Pod) -> ProcessExit:
        """A pod is not there, and nobody knows how it ended."""
        self._forget(pod)
        if pod.asked:
            return ProcessExit(role=pod.role, id=pod.id, code=128 + signal.SIGTERM)
        return ProcessExit(role=pod.role, id=pod.id, why="its pod was deleted", own_fault=False)

    def _stranger(self, state: PodState, *, gone: bool) -> None:
        """A pod of no process: of an earlier incarnation of the job's state, or one that has
        ended."""
        if gone:
            self._deleted.discard(state.name)
        elif not state.ended and state.name not in self._deleted:
            self._deleted.add(state.name)
            if not state.deleting:
                log.warning("pod %s is of an earlier life of the job: deleting it", state.name)
                self._delete(state.name, 0.0)

    def _tell(self, pod: _Pod, event: ProcessEvent) -> list[ProcessEvent]:
        if event == pod.told:
            return []
        pod.told = event
        return [event]

    def _keep(self, name: str) -> None:
        self._ended.append(name)
        if len(self._ended) > _ENDED_KEPT:
            self._delete(self._ended.popleft(), 0.0)

    def _forget(self, pod: _Pod) -> None:
        del self._pods[pod.name]
