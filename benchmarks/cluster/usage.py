"""What a run uses: CPUs of the cluster, and processor time and memory of the master."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.cluster.machines import Clock

CPUs = defaultdict[str, float]
Series = dict[str, list[float]]


class Usage:
    """How many CPUs each user has been given, and how many of them do what they are there for.

    The integrals are exact; the series are samples for a picture.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.now
        self.bound: CPUs = defaultdict(float)
        """CPUs of machines that pods of each user hold."""
        self.busy: CPUs = defaultdict(float)
        """CPUs of pods that have started, and have work."""
        self.bound_s: CPUs = defaultdict(float)
        """CPU seconds."""
        self.busy_s: CPUs = defaultdict(float)
        self.times: list[float] = []
        self.series: dict[str, Series] = {"bound": {}, "busy": {}}

    def add(self, counter: CPUs, user: str, cpus: float) -> None:
        """Add CPUs to those of a user; a negative number removes them."""
        self._integrate()
        counter[user] += cpus

    def _integrate(self) -> None:
        elapsed, self._since = self._clock.now - self._since, self._clock.now
        if not elapsed:
            return
        for users, total in ((self.bound, self.bound_s), (self.busy, self.busy_s)):
            for user, cpus in users.items():
                total[user] += cpus * elapsed

    def sample(self) -> bool:
        """Append the current state to the series."""
        self._integrate()
        self.times.append(self._clock.now)
        for kind, users in (("bound", self.bound), ("busy", self.busy)):
            for user, cpus in users.items():
                series = self.series[kind].setdefault(user, [0] * (len(self.times) - 1))
                series.append(cpus)
        return True

    def total(self, kind: str) -> list[float]:
        """The sum over all users at each sample."""
        return [sum(at) for at in zip(*self.series[kind].values(), strict=True)]


T = TypeVar("T")


class Meter:
    """Counts calls, and the processor time that they take on this machine."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.cpu_ns: Counter[str] = Counter()
        self.longest_ns: Counter[str] = Counter()
        self.last_s = 0.0
        """Seconds of the last call."""

    def __call__(self, name: str, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Makes a call of the master."""
        began = time.thread_time_ns()
        try:
            return call(*args, **kwargs)
        finally:
            took = time.thread_time_ns() - began
            self.last_s = took / 1e9
            self.calls[name] += 1
            self.cpu_ns[name] += took
            self.longest_ns[name] = max(self.longest_ns[name], took)

    def cpu_s(self) -> float:
        """Seconds of all calls."""
        return sum(self.cpu_ns.values()) / 1e9

    def us_per_call(self) -> dict[str, float]:
        """Microseconds of each kind of call, on average."""
        return {name: round(ns / 1e3 / self.calls[name], 1) for name, ns in self.cpu_ns.items()}


# Shared by all: not what one object needs.
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def bytes_of(root: Any) -> int:
    """Bytes of an object and of all that is reachable from it, but for classes and functions.

    Messages of protobuf count with their size on the wire on top of that of the object.
    """
    seen: set[int] = set()
    stack, total = [root], 0
    while stack:
        each = stack.pop()
        if id(each) in seen or isinstance(each, _SHARED):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if hasattr(each, "ByteSize"):
            total += each.ByteSize()
        stack.extend(gc.get_referents(each))
    return total
