"""A cluster with everything that a program needs to run jobs on it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.cluster.events import Clock
from benchmarks.cluster.jobs import JobSpec, TrainingJob
from benchmarks.cluster.machines import Kubelets, Machine, Times
from benchmarks.cluster.meter import Meter
from benchmarks.cluster.scheduler import Scheduler
from benchmarks.cluster.usage import Usage


class World:
    """Machines, their scheduler, and the jobs that were submitted.

    Args:
        sample_s: between two samples of the usage.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        *,
        seed: int,
        times: Times | None = None,
        sample_s: float = 1.0,
    ) -> None:
        self.clock = Clock()
        self.usage = Usage(self.clock)
        self.meter = Meter()
        """Of the masters of all jobs."""
        self.rng = random.Random(seed)
        self.kubelets = Kubelets(self.clock, times or Times(), self.rng)
        self.scheduler = Scheduler(self.clock, machines, self.kubelets, self.usage)
        self.jobs: list[TrainingJob] = []
        self.clock.every(sample_s, self.usage.sample)

    def submit(self, spec: JobSpec, *, at_s: float = 0.0) -> TrainingJob:
        """A user submits a job at a time that is to come."""
        job = TrainingJob(spec, self.clock, self.scheduler, self.usage, self.meter)
        self.jobs.append(job)
        self.clock.after(at_s - self.clock.now, job.submit)
        return job

    def run_jobs(self) -> float:
        """Until every job has ended; returns when. Each record was done exactly once."""
        self.clock.run(done=lambda: all(job.ended_at is not None for job in self.jobs))
        for job in self.jobs:
            job.check()
        return self.clock.now
