"""The nodes of a job on a cluster: a :class:`torch_edl.processes.launcher.Launcher` above that of
pods.

A pod is created for its first process and has the name of that process. Its main process is a node
(:mod:`torch_edl.node`), which starts the processes of the pod. To the master, a process of a pod is
pending while its pod is pending, and ends when its pod ends. Of the processes of a lost pod, only
the first is reported with the cause, so that the loss counts once.

A pod stays if its last process has ended by itself, because a successor may start there. Otherwise
a pod without processes ends: its node is told to leave, so the pod completes and keeps its log.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_edl.config.environment import ENV_NODE_OF_POD
from torch_edl.events import MachineJoined, MachineLeft
from torch_edl.node.orders import Key, Nodes, Orders
from torch_edl.node.ranks import Address, Ranks
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
from torch_edl.processes.oom_kills import OOM_KILLED
from torch_edl.wire import master_pb2 as pb

# Seconds for which a pod may run before its node reports for the first time, and between two
# reports. A node reports every two seconds, and waits for a master that is restarted.
_SILENT_S = 120.0
# Maximum number of seconds between two polls that count as silence of the nodes: a master that was
# paused has heard nobody.
_MOST_POLL_S = 1.0
# Seconds until a pod is deleted whose node was told to leave.
_LEAVES_S = 15.0
_STOP_ALL_POLL_S = 0.05


@dataclass
class _Pod:
    role: str
    id: int
    orders: Orders = field(default_factory=Orders)
    runs: bool = False
    waits: ProcessWaits | None = None
    heard_at: float = 0.0
    """Time of the last report of the node, or of the start of the pod."""
    delayed: list[ProcessSpec] = field(default_factory=list)
    """Processes that start once another process of the pod has ended."""
    idle: set[Key] = field(default_factory=set)
    """Processes for which the pod waits; see
    :attr:`torch_edl.processes.launcher.ProcessSpec.module`."""
    kept: set[Key] = field(default_factory=set)
    """Processes that have ended by themselves, for whose successors the pod stays."""
    asked: set[Key] = field(default_factory=set)
    """Processes that were asked to end."""
    group: int = -1
    """Number of the pod among those of a script; -1 for other pods."""
    leave_by: float | None = None
    """Time at which the pod is deleted if it has not ended; None if it is to stay."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.id}"

    @property
    def members(self) -> list[Key]:
        delayed = [(spec.role, spec.id) for spec in self.delayed]
        return [*self.orders.members, *delayed, *self.idle]


class PodNodes:
    """Starts processes in pods.

    Args:
        pods: launcher that creates a pod for each process.
        slots: number of processes that run at once in a pod, by role; 1 for other roles.
        job: name of the job.
        incarnation: incarnation of the job's state; nodes of another incarnation must leave.
        preload: framework whose workers the nodes fork, and what else they import; empty: none.
        ranks: ranks of the workers of a script; None for a model file.
        script: arguments of ``torch-edl`` that make a pod a node of the script.
        silent_s: seconds without a report of a node after which its pod is deleted.
    """

    def __init__(
        self,
        pods: Launcher,
        *,
        slots: Mapping[str, int],
        job: str,
        incarnation: str,
        preload: Sequence[str] = (),
        ranks: Ranks | None = None,
        script: Sequence[str] = (),
        silent_s: float = _SILENT_S,
    ) -> None:
        self.nodes = Nodes(incarnation)
        self.nodes.admit = self._admit
        self._ranks, self._script = ranks, script
        self._launcher = pods
        self._slots, self._job = slots, job
        self._incarnation, self._preload = incarnation, preload
        self.silent_s = silent_s
        """Seconds without a report of a node after which its pod is deleted."""
        self._pods: dict[str, _Pod] = {}
        self._where: dict[Key, str] = {}  # also of processes that have ended
        self._names: set[str] = set()
        """Names of all pods, also of those that have ended."""
        self._events: list[ProcessEvent] = []
        self._polled_at = time.monotonic()
        self._clock = 0.0
        """Seconds for which this launcher was polled; pauses of the master do not count."""

    def start(self, spec: ProcessSpec) -> None:
        with self.nodes.changed:
            self._where[spec.role, spec.id] = spec.pod
            pod = self._pods.get(spec.pod)
            # If the pod of a spare has ended, no other pod with its name is created.
            if pod is None and spec.pod == spec.name and spec.pod not in self._names:
                pod = self._create(spec)
            if pod is None or pod.leave_by is not None:
                why = "its pod has ended"
                exit = ProcessExit(role=spec.role, id=spec.id, why=why, own_fault=False)
                self._events.append(exit)
                return
            pod.kept.clear()
            pod.idle.discard((spec.role, spec.id))
            if spec.module or spec.command is not None:
                pod.delayed.append(spec)
            else:
                pod.idle.add((spec.role, spec.id))
            if pod.waits is not None and not pod.runs:
                self._events.append(replace(pod.waits, role=spec.role, id=spec.id))
            self._tend(pod)

    def adopt(self, known: Sequence[Known]) -> None:
        ran = {each.pod: False for each in known}
        for each in known:
            ran[each.pod] |= each.ran
        ranks = self._ranks
        if ranks is not None:
            ranks.begun = any(each.ran and each.role == "worker" for each in known)
        pods = [_key(pod) for pod in ran]
        self._launcher.adopt([Known(role=r, id=id, ran=ran[f"{r}-{id}"]) for r, id in pods])
        with self.nodes.changed:
            for each in known:
                # The node reports which of its processes run and which have ended.
                pod = self._pods.get(each.pod) or self._add(each.pod)
                if each.idle:
                    pod.idle.add((each.role, each.id))
                else:
                    pod.orders.adopt(each)
                if ranks is not None and each.role == "worker":
                    pod.group = ranks.group_of(each.slot)
                self._where[each.role, each.id] = each.pod

    def poll(self) -> Sequence[ProcessEvent]:
        events = [
            e for e in self._launcher.poll() if not isinstance(e, MachineJoined | MachineLeft)
        ]
        now = time.monotonic()
        self._clock += min(now - self._polled_at, _MOST_POLL_S)
        self._polled_at = now
        with self.nodes.changed:
            for pod in self._pods.values():
                self._heed(pod)
            for event in events:
                if (found := self._pods.get(f"{event.role}-{event.id}")) is not None:
                    self._events += self._of_pod(found, event)
            for pod in list(self._pods.values()):
                self._tend(pod)
                self._end_silent(pod)
            events, self._events = self._events, []
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        with self.nodes.changed:
            pod = self._pods.get(self._where.get((role, id), ""))
            if pod is None:
                return
            pod.kept.discard((role, id))
            pod.asked.add((role, id))
            late = next((s for s in pod.delayed if (s.role, s.id) == (role, id)), None)
            if late is not None:
                pod.delayed.remove(late)
            if late is not None or (role, id) in pod.idle:
                pod.idle.discard((role, id))
                self._events.append(ProcessExit(role=role, id=id, code=128 + signal.SIGTERM))
            pod.orders.stop(role, id, grace_s=grace_s, now=time.monotonic())
            self.nodes.changed.notify_all()
            self._tend(pod)

    def stop_all(self, *, grace_s: float) -> None:
        for pod in list(self._pods.values()):
            for role, id in pod.members:
                self.stop(role, id, grace_s=grace_s)
            with self.nodes.changed:
                pod.kept.clear()
                self._tend(pod)
        deadline = time.monotonic() + grace_s + _LEAVES_S
        while self._pods and time.monotonic() < deadline:
            self.poll()
            time.sleep(_STOP_ALL_POLL_S)
        self._launcher.stop_all(grace_s=0)

    def log_path(self, role: str, id: int) -> str:
        pod = self._where.get((role, id), "")
        return self._launcher.log_path(*_key(pod)) if pod else ""

    def close(self) -> None:
        self._launcher.close()

    def _create(self, spec: ProcessSpec) -> _Pod:
        words = ["--job", self._job, "--name", spec.pod, "--incarnation", self._incarnation]
        if self._preload and spec.role == "worker":
            words += ["--preload", *self._preload]
        node = replace(spec, module="torch_edl.node", args=words)
        if spec.command is not None:
            env = {**spec.env, ENV_NODE_OF_POD: spec.pod}
            node = replace(spec, command=None, module="torch_edl.cli", args=self._script, env=env)
        self._launcher.start(replace(node, slot=spec.slot // self._slots.get(spec.role, 1)))
        pod = self._add(spec.pod)
        if self._ranks is not None and spec.command is not None:
            pod.group = self._ranks.group_of(spec.slot)
        return pod

    def _admit(self, request: pb.NodeReportRequest) -> pb.NodeReportResponse:
        """Answer a node that is unknown, or that asks for the job."""
        if request.incarnation or request.node not in self._pods:
            return pb.NodeReportResponse(leave=True)
        job = pb.JobOfNode(name=self._job, incarnation=self._incarnation)
        return pb.NodeReportResponse(job=job)

    def _add(self, name: str) -> _Pod:
        self._names.add(name)
        pod = self._pods[name] = _Pod(*_key(name), heard_at=self._clock)
        self.nodes.add(name, pod.orders)
        return pod

    def _remove(self, pod: _Pod) -> None:
        del self._pods[pod.name]
        self.nodes.remove(pod.name)

    def _heed(self, pod: _Pod) -> None:
        """Take over what the node has reported."""
        if pod.orders.reported:
            pod.orders.reported, pod.heard_at = False, self._clock
        for event in pod.orders.collect():
            if isinstance(event, ProcessExit) and event.why == OOM_KILLED:
                resources = f"--{'ps' if event.role == 'ps' else 'worker'}-resources"
                event = replace(event, why=f"{OOM_KILLED}; {resources} memory= sets the limit")
            key = event.role, event.id
            if isinstance(event, ProcessExit) and pod.leave_by is None and key not in pod.asked:
                pod.kept.add(key)
                event = replace(event, pod_lives=True)
            self._events.append(event)

    def _of_pod(self, pod: _Pod, event: ProcessEvent) -> list[ProcessEvent]:
        """Return the events of the processes that follow from an event of their pod."""
        members = pod.members
        match event:
            case ProcessWaits():
                pod.waits = event
            case ProcessRuns():
                pod.runs, pod.orders.machine, pod.heard_at = True, event.node, self._clock
            case ProcessRefused():
                members = members[:1]  # one event is enough to fail the job
            case ProcessExit() | ProcessNotStarted():
                self._remove(pod)
                if isinstance(event, ProcessExit):
                    return _ends(event, members)
        return [replace(event, role=role, id=id) for role, id in members]

    def _tend(self, pod: _Pod) -> None:
        """Start processes that waited for a slot, and end a pod that is not needed, or whose node
        does not obey."""
        now, orders = time.monotonic(), pod.orders
        while self._may_start(pod):
            spec = pod.delayed.pop(0)
            if self._ranks is not None and spec.command is not None:
                spec = self._ranks.ordered(spec, self._machines())
            orders.start(spec)
            self.nodes.changed.notify_all()
        graces = orders.graces
        stays = pod.delayed or pod.idle or pod.kept or None in graces
        if pod.leave_by is None and not stays:
            grace_s = max((grace or 0.0 for grace in graces), default=0.0)
            pod.leave_by = now + grace_s + _LEAVES_S
            if orders.heard_at is None:  # the pod may be pending
                self._launcher.stop(pod.role, pod.id, grace_s=max(1.0, grace_s))
        if pod.leave_by is not None:
            if graces and not any(graces):
                self._launcher.stop(pod.role, pod.id, grace_s=0)
            elif not graces and not orders.leave:
                orders.end()
                self.nodes.changed.notify_all()
        if orders.overdue(now) or (pod.leave_by is not None and now >= pod.leave_by):
            pod.leave_by = now
            self._launcher.stop(pod.role, pod.id, grace_s=0)

    def _may_start(self, pod: _Pod) -> bool:
        """Return whether the next process of a pod can start now."""
        if not pod.delayed or len(pod.orders.members) >= self._slots.get(pod.role, 1):
            return False
        if self._ranks is None or pod.delayed[0].command is None:
            return True
        machines = self._machines()
        return pod.group in machines and self._ranks.begin(len(machines))

    def _machines(self) -> dict[int, Address]:
        """Return the address of each pod of the script whose node has reported, by its group."""
        found = (pod for pod in self._pods.values() if pod.group >= 0 and pod.leave_by is None)
        return {pod.group: pod.orders.address for pod in found if pod.orders.address[0]}

    def _end_silent(self, pod: _Pod) -> None:
        """Give up a pod that runs and whose node does not report."""
        silent_s = self._clock - pod.heard_at
        if not pod.runs or pod.leave_by is not None or silent_s < self.silent_s:
            return
        log = self._launcher.log_path(pod.role, pod.id)
        if pod.orders.heard_at is not None:
            why, own_fault = f"its node has not reported for {self.silent_s:g} s", False
        else:
            why = f"its pod runs but has not reached the master for {self.silent_s:g} s; see {log}"
            own_fault = True
        self._launcher.stop(pod.role, pod.id, grace_s=0)
        event = ProcessExit(
            role=pod.role,
            id=pod.id,
            why=why,
            own_fault=own_fault,
            node=pod.orders.machine,
            blames_node=True,
        )
        members = pod.members
        self._remove(pod)
        self._events += _ends(event, members)


def _key(pod: str) -> Key:
    role, _, id = pod.rpartition("-")
    return role, int(id)


def _ends(event: ProcessExit, members: Sequence[Key]) -> list[ProcessEvent]:
    """Return the ends of all processes of a pod that has ended."""
    rest = event
    if not (event.was_taken or event.was_terminated):
        rest = replace(event, why=f"its pod ended with {event}", own_fault=False)
    rest = replace(rest, blames_node=False)
    return [
        replace(rest if place else event, role=role, id=id)
        for place, (role, id) in enumerate(members)
    ]
