"""Simulated time, machines and pods: what is placed where, and how a pod becomes a process."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

PENDING, BOUND, RUNNING, TERMINATING, GONE = "pending", "bound", "running", "terminating", "gone"

SIGTERM, SIGKILL = 15, 9

Action = Callable[[], None]


class Event:
    """An action that is to happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Drop the event; one that has happened may be cancelled, too."""
        self.action = None


class Clock:
    """A queue of events. Those of the same time happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the beginning."""
        self._queue: list[tuple[float, int, Event]] = []
        self._count = 0

    def after(self, delay_s: float, action: Action) -> Event:
        """Schedule an action ``delay_s`` from now."""
        assert delay_s >= 0, f"{delay_s}: the past does not change"
        event = Event(action)
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, event))
        return event

    def every(self, interval_s: float, action: Callable[[], bool]) -> None:
        """Run an action now and every ``interval_s`` for as long as it returns True."""

        def again() -> None:
            if action():
                self.after(interval_s, again)

        self.after(0, again)

    def run(self, *, until_s: float = float("inf"), done: Callable[[], bool] | None = None) -> None:
        """Run events until none is left, a time is reached, or ``done`` returns True."""
        while self._queue and self._queue[0][0] <= until_s:
            if done is not None and done():
                return
            self.now, _, event = heapq.heappop(self._queue)
            action, event.action = event.action, None
            if action is not None:
                action()
        if until_s < float("inf"):
            self.now = max(self.now, until_s)


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
    run: Callable[[Pod], None]
    """The container has started."""
    terminate: Callable[[Pod], None]
    """SIGTERM: the process has a grace period in which it may end by itself."""
    kill: Callable[[Pod], None] = lambda pod: None
    """SIGKILL, or the machine is gone: the process does nothing from then on."""
    ended: Callable[[End], None] = lambda end: None
    """Is called when the pod is gone."""
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


# Seconds from the image to the process (sandbox, volumes, container), uniform.
_START_S = 1.0, 3.0
# Seconds from the end of the process until the CPUs are free.
_END_S = 0.5


class Kubelets:
    """Start and end the pods of all machines.

    Args:
        pull_s: seconds of the first pull of an image; later pods of the machine find it there.
    """

    def __init__(self, clock: Clock, rng: random.Random, *, pull_s: float) -> None:
        self._clock, self._rng, self._pull_s = clock, rng, pull_s

    def start(self, pod: Pod) -> None:
        """A pod was bound to its machine: the image is pulled, and the process starts."""
        machine, now = pod.machine, self._clock.now
        assert machine is not None
        ready = machine.images.setdefault(pod.image, now + self._pull_s)
        self._clock.after(
            max(0.0, ready - now) + self._rng.uniform(*_START_S),
            lambda: self._started(pod),
        )

    def _started(self, pod: Pod) -> None:
        if pod.state == BOUND:
            pod.state = RUNNING
            pod.run(pod)

    def end(self, pod: Pod, grace_s: float, gone: Callable[[Pod, End], None]) -> None:
        """Asks a pod that was placed to end, and ends it by force when the grace is over."""
        if pod.state == BOUND:  # nothing runs yet
            self.over(pod, End(signal=SIGTERM), gone)
        elif pod.state == RUNNING:
            pod.state = TERMINATING
            pod.kill_at = self._clock.after(grace_s, lambda: self.kill(pod, gone))
            pod.terminate(pod)

    def kill(self, pod: Pod, gone: Callable[[Pod, End], None]) -> None:
        """Ends a pod by force."""
        if pod.state in (RUNNING, TERMINATING):
            pod.kill(pod)
        if pod.state != GONE:
            self.over(pod, End(signal=SIGKILL), gone)

    def over(self, pod: Pod, end: End, gone: Callable[[Pod, End], None]) -> None:
        """The process of a pod has ended; its CPUs are free in a moment."""
        if pod.state == GONE:
            return
        pod.state = GONE
        if pod.kill_at is not None:
            pod.kill_at.cancel()
        self._clock.after(_END_S, lambda: gone(pod, end))
