"""Machines and pods: what is placed where, and how a pod becomes a process."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.cluster.events import Clock, Event

PENDING, BOUND, RUNNING, TERMINATING, GONE = "pending", "bound", "running", "terminating", "gone"

SIGTERM, SIGKILL = 15, 9


class Process(Protocol):
    """What runs in a pod."""

    def run(self, pod: Pod) -> None:
        """The container has started."""
        ...

    def terminate(self) -> None:
        """SIGTERM: the process has a grace period in which it may end by itself."""
        ...

    def kill(self) -> None:
        """SIGKILL, or the machine is gone: nothing of the process happens any more."""
        ...


@dataclass(frozen=True)
class End:
    """How a pod ended: an exit code or a signal."""

    code: int | None = None
    signal: int | None = None


@dataclass(eq=False)
class Pod:
    """A container that asks for CPUs."""

    name: str
    user: str
    """Whose CPUs they are: a job or a service."""
    cpus: int
    priority: int
    image: str
    process: Process
    ended: Callable[[End], None]
    """Is called when the pod is gone."""
    started: Callable[[Pod], None] = lambda pod: None
    """Is called before the process runs, as the API of Kubernetes tells a watch."""
    group: str = ""
    """Its pods are placed when all of them fit, see :meth:`Scheduler.hold`; empty: no group."""
    reserved: bool = False
    """Only for machines that stay, see :class:`Machine`."""
    grace_s: float = 30.0
    state: str = PENDING
    submitted_at: float = 0.0
    machine: Machine | None = None
    nominated: Machine | None = None
    """Room is being made for the pod there."""
    kill_at: Event | None = None


@dataclass(eq=False)
class Machine:
    """A machine of the cluster."""

    name: str
    cpus: int
    spot: bool = False
    """The machine may be taken away; pods that are ``reserved`` are not placed there."""
    speed: float = 1.0
    """Relative to the others."""
    pods: list[Pod] = field(default_factory=list)
    nominated: list[Pod] = field(default_factory=list)
    images: dict[str, float] = field(default_factory=dict)
    """When each image is there; in the future: it is being pulled."""
    used: int = 0

    def free_for(self, pod: Pod) -> int:
        """CPUs that a pod could take: not those that are kept for pods as urgent as it is."""
        kept = sum(
            other.cpus
            for other in self.nominated
            if other is not pod and other.priority >= pod.priority
        )
        return self.cpus - self.used - kept


@dataclass(frozen=True, kw_only=True)
class Times:
    """What a kubelet takes for a pod, in seconds."""

    pull_s: float = 30.0
    """An image of 1 GB at 35 MB/s; later pods of the machine find it there."""
    start_s: tuple[float, float] = (1.0, 3.0)
    """Sandbox, volumes and the container's process: uniform."""
    end_s: float = 0.5
    """From the end of the process until the CPUs are free."""


class Kubelets:
    """Start and end the pods of all machines."""

    def __init__(self, clock: Clock, times: Times, rng: random.Random) -> None:
        self._clock = clock
        self._times = times
        self._rng = rng

    def start(self, pod: Pod) -> None:
        """A pod was bound to its machine: the image is pulled, and the process starts."""
        machine, now = pod.machine, self._clock.now
        assert machine is not None
        ready = machine.images.setdefault(pod.image, now + self._times.pull_s)
        self._clock.after(
            max(0.0, ready - now) + self._rng.uniform(*self._times.start_s),
            lambda: self._started(pod),
        )

    def _started(self, pod: Pod) -> None:
        if pod.state == BOUND:
            pod.state = RUNNING
            pod.started(pod)
            pod.process.run(pod)

    def end(self, pod: Pod, grace_s: float, gone: Callable[[Pod, End], None]) -> None:
        """Asks a pod that was placed to end, and ends it by force when the grace is over."""
        if pod.state == BOUND:  # nothing runs yet
            self.over(pod, End(signal=SIGTERM), gone)
        elif pod.state == RUNNING:
            pod.state = TERMINATING
            pod.kill_at = self._clock.after(grace_s, lambda: self.kill(pod, gone))
            pod.process.terminate()

    def kill(self, pod: Pod, gone: Callable[[Pod, End], None]) -> None:
        """Ends a pod by force."""
        if pod.state in (RUNNING, TERMINATING):
            pod.process.kill()
        if pod.state != GONE:
            self.over(pod, End(signal=SIGKILL), gone)

    def over(self, pod: Pod, end: End, gone: Callable[[Pod, End], None]) -> None:
        """The process of a pod has ended; its CPUs are free in a moment."""
        if pod.state == GONE:
            return
        pod.state = GONE
        if pod.kill_at is not None:
            pod.kill_at.cancel()
        self._clock.after(self._times.end_s, lambda: gone(pod, end))
