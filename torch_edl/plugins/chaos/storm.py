"""Decides which process is struck when, from the plan, its seed and the running processes. Pure."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch_edl.plugins.chaos.plan import Fault, StormPlan

# Seconds that a due fault waits for a process to strike.
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Target:
    """A running process of the job."""

    role: str
    id: int
    pid: int
    """Process id on its machine; 0 for a process in a pod."""
    pod: str = ""
    """Name of the pod of the process; empty on a machine. A restarted process has another pod."""

    @property
    def place(self) -> str:
        """The pod or the process id, for messages."""
        return f"pod {self.pod}" if self.pod else f"pid {self.pid}"

    def __str__(self) -> str:
        return f"{self.role}-{self.id}"


@dataclass(frozen=True, order=True)
class Strike:
    """A scheduled fault."""

    at_s: float
    """Seconds from the start of the storm."""
    chance: float
    """Random number from 0 to 1 that selects one of the running processes."""
    role: str
    signal: str
    pause_s: float


@dataclass(frozen=True)
class Blow:
    """A signal that is due."""

    target: Target
    number: signal.Signals
    pause_s: float = 0.0


def strikes(plan: StormPlan) -> list[Strike]:
    """Return all faults of a storm in the order of their times."""
    chance = random.Random(plan.seed)
    found = []
    for fault in plan.faults:
        for at_s in _times(fault, plan.for_s, chance):
            found.append(Strike(at_s, chance.random(), fault.role, fault.signal, fault.pause_s))
    return sorted(found)


def _times(fault: Fault, for_s: float, chance: random.Random) -> Iterable[float]:
    if not fault.every_s:
        yield from [fault.at_s] * fault.count
        return
    for round in range(math.ceil(for_s / fault.every_s)):
        for _ in range(fault.count):
            at_s = (round + chance.random()) * fault.every_s
            if at_s < for_s:
                yield at_s


class Storm:
    """The pending faults and pauses of a storm."""

    def __init__(self, plan: StormPlan) -> None:
        self._open = strikes(plan)
        self._struck: set[Target] = set()
        self._paused: dict[Target, float] = {}
        self.missed = 0
        """Number of faults that found no process in time."""

    @property
    def over(self) -> bool:
        """True if no fault and no pause is pending."""
        return not self._open and not self._paused

    def next_s(self) -> float:
        """Return the time at which the next fault or end of a pause is due; infinity if none is
        pending."""
        times = [strike.at_s for strike in self._open[:1]] + list(self._paused.values())
        return min(times, default=math.inf)

    def due(
        self,
        now_s: float,
        living: Sequence[Target],
        expendable: Collection[Target] | None = None,
    ) -> list[Blow]:
        """Return the signals to send now.

        Args:
            living: the running processes.
            expendable: servers that may be lost, but only one of them before the caller makes a new
                list; None: all servers may be lost, even together.
        """
        blows = []
        for paused, until in list(self._paused.items()):
            if now_s >= until:
                del self._paused[paused]
                blows.append(Blow(paused, signal.SIGCONT))
        waiting = []
        while self._open and self._open[0].at_s <= now_s:
            strike = self._open.pop(0)
            free = living
            if strike.role == "ps" and expendable is not None:
                free = [] if self._has_struck_server(living) else list(expendable)
            target = self._aim(strike, free)
            if target is not None:
                blows.append(self._strike(strike, target, now_s))
            elif now_s - strike.at_s < _PATIENCE_S:
                waiting.append(strike)
            else:
                self.missed += 1
        self._open = waiting + self._open
        return blows

    def stop(self) -> list[Blow]:
        """Cancel all pending faults, and return the signals that continue paused processes."""
        blows = [Blow(target, signal.SIGCONT) for target in self._paused]
        self._open, self._paused = [], {}
        return blows

    def _has_struck_server(self, living: Sequence[Target]) -> bool:
        return any(t.role == "ps" and (t in self._struck or t in self._paused) for t in living)

    def _aim(self, strike: Strike, living: Sequence[Target]) -> Target | None:
        free = sorted(
            (t for t in living if t.role == strike.role and t not in self._struck),
            key=lambda t: t.id,
        )
        if strike.pause_s:
            free = [t for t in free if t not in self._paused]
        return free[min(int(strike.chance * len(free)), len(free) - 1)] if free else None

    def _strike(self, strike: Strike, target: Target, now_s: float) -> Blow:
        if strike.pause_s:
            self._paused[target] = now_s + strike.pause_s
            return Blow(target, signal.SIGSTOP, strike.pause_s)
        self._struck.add(target)
        # The kernel delivers SIGTERM to a stopped process only when it continues.
        if strike.signal == "KILL":
            self._paused.pop(target, None)
        return Blow(target, signal.Signals[f"SIG{strike.signal}"])
