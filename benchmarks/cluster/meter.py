"""What the master takes: processor time by kind of call, and how often each is made."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

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
