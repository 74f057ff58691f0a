"""Workers that share pods: a :class:`torch_edl.processes.launcher.Launcher` above that of pods.

A pod is created for its first worker and has the number of that worker. The process of the pod
(:mod:`torch_edl.plugins.kubernetes.master.pod_workers`) learns which workers to run from the
answers to its reports; a pod without workers is deleted. To the master, a worker of a shared pod
looks like any other: it waits while its pod waits, and the end of a pod is the end of its workers.
Only the first of these exits has the cause, so that one loss counts once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_edl.processes.launcher import (
    Known,
    Launcher,
    ProcessEvent,
    ProcessExit,
    ProcessRefused,
    ProcessRuns,
    ProcessSpec,
    ProcessWaits,
)
from torch_edl.wire import master_pb2 as pb

MODULE = "torch_edl.plugins.kubernetes.master.pod_workers"
_WORKER = "worker"
# Seconds after the end of its grace period for which a worker may still run before its pod is
# deleted.
_OVERDUE_S = 15.0
_GONE = ProcessExit(role=_WORKER, id=-1, why="its pod has ended", own_fault=False)


@dataclass
class _Member:
    role: str
    """The current role of the process; a worker may have become a server."""
    id: int
    told: bool = False
    """True if the pod has received the order to run the worker."""
    grace_s: float | None = None
    """Grace period of a stopped worker, seconds; None: the worker is to run."""
    overdue_at: float = 0.0


@dataclass
class _Pod:
    id: int
    members: dict[int, _Member] = field(default_factory=dict)
    """The workers of the pod, by the number that each had as a worker."""
    node: str = ""
    runs: bool = False
    waits: ProcessWaits | None = None
    leaves: bool = False
    """True if the deletion of the pod was requested."""


class SharedPods:
    """Starts workers in shared pods, and all other processes with ``pods``.

    All methods but :meth:`report` must be called by one thread.

    Args:
        pods: launcher that creates a pod for each process.
        per_pod: maximum number of workers of a pod.
        incarnation: incarnation of the job's state; pods of another one have to leave.
    """

    def __init__(self, pods: Launcher, *, per_pod: int, incarnation: str) -> None:
        self._launcher = pods
        self._per_pod, self._incarnation = per_pod, incarnation
        self._lock = threading.Lock()
        self._pods: dict[int, _Pod] = {}
        self._where: dict[tuple[str, int], int] = {}  # also of processes that have ended
        self._events: list[ProcessEvent] = []

    def start(self, spec: ProcessSpec) -> int:
        if spec.pod < 0:
            return self._launcher.start(spec)
        with self._lock:
            self._where[spec.role, spec.id] = spec.pod
            pod = self._pods.get(spec.pod)
            if spec.pod != spec.id and (pod is None or pod.leaves):
                self._events.append(replace(_GONE, id=spec.id))
                return 0
            if pod is None:
                place = spec.slot // self._per_pod
                words = ["--pod", str(spec.id), "--module", spec.module]
                words += ["--incarnation", self._incarnation]
                self._launcher.start(replace(spec, module=MODULE, args=words, slot=place))
                pod = self._pods[spec.id] = _Pod(spec.id)
            pod.members[spec.id] = _Member(_WORKER, spec.id)
            if pod.runs:
                self._events.append(ProcessRuns(role=_WORKER, id=spec.id, node=pod.node))
            elif pod.waits is not None:
                self._events.append(replace(pod.waits, id=spec.id))
        return 0

    def adopt(self, known: Sequence[Known]) -> dict[tuple[str, int], Known | None]:
        shared = [each for each in known if each.pod >= 0]
        ran = {each.pod: False for each in shared}
        for each in shared:
            ran[each.pod] |= each.ran
        alone = [each for each in known if each.pod < 0]
        pods = [Known(role=_WORKER, id=id, ran=ran[id]) for id in ran]
        taken = self._launcher.adopt([*alone, *pods])
        found = {(each.role, each.id): taken[each.role, each.id] for each in alone}
        with self._lock:
            for each in shared:
                there = taken[_WORKER, each.pod] is not None
                found[each.role, each.id] = each if there else None
                if there:
                    worker = int(each.started_as.rpartition("-")[2] or each.id)
                    pod = self._pods.setdefault(each.pod, _Pod(each.pod))
                    # The pod reports which of its workers run and which have ended.
                    pod.members[worker] = _Member(each.role, each.id, told=True)
                    self._where[each.role, each.id] = each.pod
        return found

    def poll(self) -> Sequence[ProcessEvent]:
        heard = self._launcher.poll()
        with self._lock:
            for event in heard:
                pod = self._pods.get(event.id) if event.role == _WORKER else None
                self._events += [event] if pod is None else self._of_pod(pod, event)
            for pod in list(self._pods.values()):
                self._tend(pod, time.monotonic())
            events, self._events = self._events, []
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        with self._lock:
            pod = self._pods.get(self._where.get((role, id), -1))
            if pod is None:
                self._launcher.stop(role, id, grace_s=grace_s)
                return
            for worker, member in pod.members.items():
                if (member.role, member.id) != (role, id):
                    continue
                if not member.told:
                    del pod.members[worker]
                    code = 128 + signal.SIGTERM
                    self._events.append(ProcessExit(role=role, id=id, code=code))
                else:
                    before = grace_s if member.grace_s is None else member.grace_s
                    member.grace_s = min(grace_s, before)
                    member.overdue_at = time.monotonic() + member.grace_s + _OVERDUE_S
                break
            self._tend(pod, time.monotonic())

    def rename(self, role: str, id: int, to_role: str, to_id: int) -> None:
        with self._lock:
            pod = self._pods.get(self._where.get((role, id), -1))
            if pod is None:
                self._launcher.rename(role, id, to_role, to_id)
                return
            self._where[to_role, to_id] = pod.id
            for member in pod.members.values():
                if (member.role, member.id) == (role, id):
                    member.role, member.id = to_role, to_id

    def stop_all(self, *, grace_s: float) -> None:
        self._launcher.stop_all(grace_s=grace_s)

    def log_path(self, role: str, id: int) -> str:
        pod = self._where.get((role, id), -1)
        return self._launcher.log_path(*((role, id) if pod < 0 else (_WORKER, pod)))

    def close(self) -> None:
        self._launcher.close()

    def report(self, request: pb.PodReportRequest) -> pb.PodReportResponse:
        """Process the report of a pod, and return which workers to run and to stop. Thread-safe."""
        with self._lock:
            pod = self._pods.get(request.pod)
            # A master that lost the state numbers its pods from 0 again.
            if pod is None or request.incarnation != self._incarnation:
                return pb.PodReportResponse(leave=True)
            for ended in request.ended:
                member = pod.members.pop(ended.id, None)
                if member is not None:
                    self._events.append(_exit(member, ended, pod.node))
            if pod.leaves:
                return pb.PodReportResponse()  # the pod is about to receive SIGTERM
            answer = pb.PodReportResponse()
            for worker, member in pod.members.items():
                member.told = True
                if member.grace_s is None:
                    answer.run.append(worker)
                else:
                    answer.stop.add(id=worker, grace_s=member.grace_s)
            for worker in set(request.running) - pod.members.keys():
                answer.stop.add(id=worker, grace_s=0.0)
            return answer

    def _of_pod(self, pod: _Pod, event: ProcessEvent) -> list[ProcessEvent]:
        """Return the events of the workers that follow from an event of their pod."""
        members = list(pod.members.values())
        match event:
            case ProcessWaits():
                pod.waits = event
            case ProcessRuns():
                pod.runs, pod.node = True, event.node
            case ProcessRefused():
                members = members[:1]  # one event is enough to fail the job
            case ProcessExit():
                del self._pods[pod.id]
                rest = event
                if not (event.was_taken or event.was_terminated):
                    why = f"its pod ended with {event}"
                    rest = replace(event, why=why, own_fault=False)
                rest = replace(rest, blames_node=False)
                return [
                    replace(rest if place else event, role=member.role, id=member.id)
                    for place, member in enumerate(members)
                ]
        return [replace(event, role=member.role, id=member.id) for member in members]

    def _tend(self, pod: _Pod, now: float) -> None:
        """Delete a pod that has no worker left, or a worker that does not end."""
        graces = [member.grace_s for member in pod.members.values()]
        stays = [grace_s for grace_s in graces if grace_s is None]
        if not stays and not pod.leaves:
            pod.leaves = True
            self._launcher.stop(_WORKER, pod.id, grace_s=max((g or 0.0 for g in graces), default=1))
        elif not stays and graces and not any(graces):
            self._launcher.stop(_WORKER, pod.id, grace_s=0)  # shortens the grace period
        elif any(m.grace_s is not None and now >= m.overdue_at for m in pod.members.values()):
            pod.leaves = True
            self._launcher.stop(_WORKER, pod.id, grace_s=0)


def _exit(member: _Member, ended: pb.EndedWorker, node: str) -> ProcessExit:
    code = ended.code
    failed = code not in (0, 128 + signal.SIGTERM)
    return ProcessExit(
        role=member.role,
        id=member.id,
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        why=ended.last_line if failed else "",
        node=node,
        blames_node=failed,
    )
