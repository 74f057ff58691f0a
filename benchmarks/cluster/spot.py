"""Machines that the provider takes away, and gives back later."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cluster.events import Clock
from benchmarks.cluster.machines import Machine
from benchmarks.cluster.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True)
class Lifetimes:
    """How long a preemptible machine lives: a bathtub, many are taken early and the rest when the
    provider's limit is near.

    ``F(t) = share * (1 - exp(-t / early) + exp((t - limit) / late))``, the law that Kadupitiya,
    Jadhao and Sharma fit to preemptible machines of Google's cloud ("Modeling the Temporally
    Constrained Preemptions of Transient Cloud VMs", HPDC 2020, equation 1). Times in seconds.
    """

    share: float = 0.45
    early: float = 3600.0
    late: float = 0.8 * 3600
    limit: float = 24 * 3600.0

    def draw(self, rng: random.Random) -> float:
        """A lifetime, by bisection of the law."""
        probability, low, high = rng.random(), 0.0, self.limit
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (middle, high) if self.before(middle) < probability else (low, middle)
        return high

    def before(self, t: float) -> float:
        """The probability that a machine is taken before it is ``t`` old."""
        late = math.exp((t - self.limit) / self.late)
        return min(1.0, self.share * (1 - math.exp(-t / self.early) + late))


class Spot:
    """The preemptible machines of a cluster: each has a lifetime, and a successor some time later.

    Args:
        notice_s: between the word that a machine is taken and its end.
        unannounced: the share of machines that end without a word.
        back_s: mean of the time until the successor is there, exponential.
        running: whether anything is to happen any more.
    """

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        rng: random.Random,
        *,
        lifetimes: Lifetimes,
        notice_s: float = 30.0,
        unannounced: float = 0.1,
        back_s: float = 60.0,
        running: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._rng = rng
        self._lifetimes = lifetimes
        self._notice_s = notice_s
        self._unannounced = unannounced
        self._back_s = back_s
        self._running = running
        self.taken = 0
        for machine in list(scheduler.machines.values()):
            if machine.spot:
                self._live(machine)

    def _live(self, machine: Machine) -> None:
        self._clock.after(self._lifetimes.draw(self._rng), lambda: self.take(machine))

    def take(self, machine: Machine) -> None:
        """The provider takes a machine, if it is still there."""
        if self._scheduler.machines.get(machine.name) is not machine or not self._running():
            return
        self.taken += 1
        notice_s = 0.0 if self._rng.random() < self._unannounced else self._notice_s
        self._scheduler.reclaim(machine, notice_s)
        self._clock.after(notice_s + self._rng.expovariate(1 / self._back_s), self._again(machine))

    def take_share(self, share: float) -> None:
        """The provider takes many machines at once."""
        machines = [m for m in self._scheduler.machines.values() if m.spot]
        for machine in self._rng.sample(machines, round(share * len(machines))):
            self.take(machine)

    def _again(self, machine: Machine) -> Callable[[], None]:
        def comes() -> None:
            successor = Machine(machine.name, machine.cpus, spot=True, speed=machine.speed)
            self._scheduler.add(successor)
            self._live(successor)

        return comes
