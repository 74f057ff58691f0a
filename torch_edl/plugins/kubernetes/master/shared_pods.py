"""Workers that share pods: a :class:`torch_edl.processes.launcher.Launcher` above that of pods.

A pod is created for its first worker and has the number of that worker. Its main process is a node
(:mod:`torch_edl.node`), which starts several workers. A pod without workers is deleted. To the
master, a worker of a shared pod looks like any other worker: it is pending while its pod is
pending, and it ends when its pod ends. Of the workers of a lost pod, only the first is reported
with the cause, so that the loss counts once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_edl.node.orders import Nodes, Orders
from torch_edl.processes.launcher import (
    Known,
    Launcher,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRefused,
    ProcessRuns,
    ProcessSpec,
    ProcessWaits,
)

MODULE = "torch_edl.node"
_WORKER = "worker"
_GONE = ProcessExit(role=_WORKER, id=-1, why="its pod has ended", own_fault=False)


@dataclass
class _Pod:
    id: int
    orders: Orders = field(default_factory=Orders)
    runs: bool = False
    waits: ProcessWaits | None = None
    leaves: bool = False
    """True if the deletion of the pod was requested."""


class SharedPods:
    """Starts workers in shared pods, and all other processes with ``pods``.

    Args:
        pods: launcher that creates a pod for each process.
        per_pod: maximum number of workers of a pod.
        incarnation: incarnation of the job's state; pods of another incarnation must leave.
        preload: framework whose workers the nodes in the pods fork; empty: none.
    """

    def __init__(
        self, pods: Launcher, *, per_pod: int, incarnation: str, preload: str = ""
    ) -> None:
        self.nodes = Nodes(incarnation)
        self._launcher = pods
        self._per_pod, self._incarnation, self._preload = per_pod, incarnation, preload
        self._pods: dict[int, _Pod] = {}
        self._where: dict[tuple[str, int], int] = {}  # also of processes that have ended
        self._events: list[ProcessEvent] = []

    def start(self, spec: ProcessSpec) -> None:
        if spec.pod < 0:
            return self._launcher.start(spec)
        with self.nodes.changed:
            self._where[spec.role, spec.id] = spec.pod
            pod = self._pods.get(spec.pod)
            if spec.pod != spec.id and (pod is None or pod.leaves):
                self._events.append(replace(_GONE, id=spec.id))
                return None
            if pod is None:
                place = spec.slot // self._per_pod
                words = ["--name", _name(spec.id), "--incarnation", self._incarnation]
                words += ["--preload", self._preload] if self._preload else []
                self._launcher.start(replace(spec, module=MODULE, args=words, slot=place))
                pod = self._add(spec.id)
            pod.orders.start(spec)
            self.nodes.changed.notify_all()
            if pod.waits is not None and not pod.runs:
                self._events.append(replace(pod.waits, id=spec.id))
        return None

    def adopt(self, known: Sequence[Known]) -> None:
        shared = [each for each in known if each.pod >= 0]
        ran = {each.pod: False for each in shared}
        for each in shared:
            ran[each.pod] |= each.ran
        alone = [each for each in known if each.pod < 0]
        self._launcher.adopt([*alone, *(Known(role=_WORKER, id=id, ran=ran[id]) for id in ran)])
        with self.nodes.changed:
            for each in shared:
                # The pod reports which of its workers run and which have ended.
                pod = self._pods.get(each.pod) or self._add(each.pod)
                pod.orders.adopt(each)
                self._where[each.role, each.id] = each.pod

    def poll(self) -> Sequence[ProcessEvent]:
        heard = self._launcher.poll()
        with self.nodes.changed:
            for pod in self._pods.values():
                self._events += pod.orders.events
                pod.orders.events = []
            for event in heard:
                found = self._pods.get(event.id) if event.role == _WORKER else None
                self._events += [event] if found is None else self._of_pod(found, event)
            for pod in list(self._pods.values()):
                self._tend(pod, time.monotonic())
            events, self._events = self._events, []
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        with self.nodes.changed:
            pod = self._pods.get(self._where.get((role, id), -1))
            if pod is None:
                self._launcher.stop(role, id, grace_s=grace_s)
                return
            pod.orders.stop(role, id, grace_s=grace_s, now=time.monotonic())
            self.nodes.changed.notify_all()
            self._tend(pod, time.monotonic())

    def rename(self, role: str, id: int, to_role: str, to_id: int) -> None:
        with self.nodes.changed:
            pod = self._pods.get(self._where.get((role, id), -1))
            if pod is None:
                self._launcher.rename(role, id, to_role, to_id)
                return
            self._where[to_role, to_id] = pod.id
            pod.orders.rename(role, id, to_role, to_id)

    def stop_all(self, *, grace_s: float) -> None:
        self._launcher.stop_all(grace_s=grace_s)

    def log_path(self, role: str, id: int) -> str:
        pod = self._where.get((role, id), -1)
        return self._launcher.log_path(*((role, id) if pod < 0 else (_WORKER, pod)))

    def close(self) -> None:
        self._launcher.close()

    def _add(self, id: int) -> _Pod:
        pod = self._pods[id] = _Pod(id)
        self.nodes.add(_name(id), pod.orders)
        return pod

    def _of_pod(self, pod: _Pod, event: ProcessEvent) -> list[ProcessEvent]:
        """Return the events of the workers that follow from an event of their pod."""
        members = pod.orders.members
        match event:
            case ProcessWaits():
                pod.waits = event
            case ProcessRuns():
                pod.runs, pod.orders.machine = True, event.node
            case ProcessRefused():
                members = members[:1]  # one event is enough to fail the job
            case ProcessExit() | ProcessNotStarted():
                del self._pods[pod.id]
                self.nodes.remove(_name(pod.id))
                if isinstance(event, ProcessExit):
                    return _ends(event, members)
        return [replace(event, role=role, id=id) for role, id in members]

    def _tend(self, pod: _Pod, now: float) -> None:
        """Delete a pod that has no worker left, or a worker that does not end."""
        graces = pod.orders.graces
        stays = [grace_s for grace_s in graces if grace_s is None]
        if not stays and not pod.leaves:
            pod.leaves = True
            self._launcher.stop(_WORKER, pod.id, grace_s=max((g or 0.0 for g in graces), default=1))
        elif not stays and graces and not any(graces):
            self._launcher.stop(_WORKER, pod.id, grace_s=0)  # shortens the grace period
        elif pod.orders.overdue(now):
            pod.leaves = True
            self._launcher.stop(_WORKER, pod.id, grace_s=0)


def _name(pod: int) -> str:
    return f"pod-{pod}"


def _ends(event: ProcessExit, members: Sequence[tuple[str, int]]) -> list[ProcessEvent]:
    """Return the ends of all workers of a pod that has ended."""
    rest = event
    if not (event.was_taken or event.was_terminated):
        rest = replace(event, why=f"its pod ended with {event}", own_fault=False)
    rest = replace(rest, blames_node=False)
    return [
        replace(rest if place else event, role=role, id=id)
        for place, (role, id) in enumerate(members)
    ]
