"""How fast workers train, and what they take to start. Assumptions, with noise from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from benchmarks.cluster.machines import Pod


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of the workers of a job.

    A worker trains by itself (asynchronous SGD on parameter servers), so that the speed of a job is
    the sum over its workers. The time of a task has a log-normal factor; its mean is one.
    """

    records_per_s: float
    """Of one worker on a machine of speed 1."""
    noise: float = 0.1
    """Standard deviation of the logarithm of that factor."""
    import_s: tuple[float, float] = (5.0, 9.0)
    """From the start of the process until the worker registers: the import of torch, uniform."""
    build_s: tuple[float, float] = (1.0, 2.0)
    """From there until it has its model, uniform."""

    def task_s(self, records: int, pod: Pod, rng: random.Random) -> float:
        """Seconds for so many records."""
        machine = pod.machine.speed if pod.machine is not None else 1.0
        factor = math.exp(rng.gauss(-(self.noise**2) / 2, self.noise))
        return records / (self.records_per_s * machine) * factor
