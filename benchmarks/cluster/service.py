"""A web service whose replicas follow its load, as the horizontal autoscaler of Kubernetes does."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable

from benchmarks.cluster.events import Clock
from benchmarks.cluster.machines import PENDING, RUNNING, Pod
from benchmarks.cluster.scheduler import Scheduler
from benchmarks.cluster.usage import Usage

DAY_S = 86_400.0
_SYNC_S = 15.0
# Replicas are removed when fewer have been enough for so long.
_STABLE_S = 300.0


def daily_load(rng: random.Random, *, low: float, high: float) -> Callable[[float], float]:
    """CPUs of work over a day: low before dawn, peaks before noon and in the evening, some minutes
    of a flash crowd, and noise that lasts for minutes."""
    crowd_at = rng.uniform(0.55, 0.65) * DAY_S
    waves = [(rng.uniform(200, 900), rng.uniform(0, 6.28), rng.uniform(0.01, 0.03)) for _ in "abcd"]

    def load(t: float) -> float:
        hour = t / DAY_S * 24 % 24
        day = 0.85 * math.exp(-(((hour - 11) / 3.5) ** 2)) + math.exp(-(((hour - 20.5) / 2.5) ** 2))
        noise = sum(size * math.sin(t / period + phase) for period, phase, size in waves)
        crowd = 0.4 * math.exp(-(((t - crowd_at) / 600) ** 2))
        return low + (high - low) * min(1.0, max(0.0, day + crowd + noise))

    return load


class _Replica:
    """The process of one replica: serves until it is asked to end, which it does at once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pod: Pod | None = None

    def run(self, pod: Pod) -> None:
        self._pod = pod
        self._service.serves(pod, 1)

    def terminate(self) -> None:
        assert self._pod is not None
        self._service.serves(self._pod, -1)
        self._service.exited(self._pod)

    def kill(self) -> None:
        raise AssertionError("a replica that is asked to end does so")


class Service:
    """A deployment of replicas of one CPU, and its autoscaler.

    Args:
        load: CPUs of work at a time.
        target: CPUs of work for each replica.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        scheduler: Scheduler,
        usage: Usage,
        *,
        load: Callable[[float], float],
        target: float = 0.7,
        priority: int = 100,
        until_s: float,
    ) -> None:
        self._name = name
        self._clock = clock
        self._scheduler = scheduler
        self._usage = usage
        self._load = load
        self._target = target
        self._priority = priority
        self._until_s = until_s
        self._pods: list[Pod] = []
        self._wishes: deque[tuple[float, int]] = deque()
        self._count = 0
        self.most = 0
        """Replicas at the peak."""
        self.overloaded_s = 0.0
        """Seconds in which there was more work than the replicas that ran could do."""
        clock.every(_SYNC_S, self._sync)

    def _sync(self) -> bool:
        now = self._clock.now
        load = self._load(now)
        running = sum(pod.state == RUNNING for pod in self._pods)
        if load > running and now > 60.0:
            self.overloaded_s += _SYNC_S
        self._wishes.append((now, math.ceil(load / self._target)))
        while self._wishes[0][0] < now - _STABLE_S:
            self._wishes.popleft()
        wanted = max(count for _, count in self._wishes)
        self.most = max(self.most, wanted)
        for _ in range(wanted - len(self._pods)):
            self._pods.append(self._replica())
        # Those that wait for a machine go first, then the newest.
        by_use = sorted(self._pods, key=lambda pod: pod.state != PENDING)
        for pod in by_use[wanted:][::-1]:
            self._pods.remove(pod)
            self._scheduler.delete(pod, 30.0)
        return now < self._until_s

    def _replica(self) -> Pod:
        self._count += 1
        pod = Pod(
            name=f"{self._name}-{self._count}",
            user=self._name,
            cpus=1,
            priority=self._priority,
            image=self._name,
            process=_Replica(self),
            ended=lambda end: None,
        )
        self._scheduler.submit(pod)
        return pod

    def serves(self, pod: Pod, sign: int) -> None:
        """A replica begins or ends to serve."""
        self._usage.add(self._usage.busy, self._name, sign * pod.cpus)

    def exited(self, pod: Pod) -> None:
        """The process of a replica has ended."""
        self._scheduler.exited(pod, 0)
