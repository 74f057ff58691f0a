"""Up to 10,000 workers on machines that are taken away: what the master takes as the job grows.

    python -m benchmarks.cluster.many_workers [--workers 100 1000 10000] [--seed 0]

Eight workers on each machine, a task of two seconds for each (so that 10,000 workers lease 5,000
tasks a second), and machines that live as :class:`Lifetimes` says; when all workers train, the
provider takes a tenth of the machines at once. A machine has 30 s of notice, but for one in ten,
which has none. The last job has 1,000 workers and ten million tasks, and is not
trained to its end.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cluster import plots
from benchmarks.cluster.jobs import World
from benchmarks.cluster.machines import Clock, Machine
from benchmarks.cluster.scheduler import Scheduler
from benchmarks.cluster.spec import JobSpec
from benchmarks.cluster.usage import bytes_of
from benchmarks.report import report


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
        running: whether there is still something to do.
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
            successor = Machine(machine.name, machine.cpus, spot=True)
            self._scheduler.add(successor)
            self._live(successor)

        return comes


WORKERS_PER_MACHINE = 8
TASK_S = 2.0
RECORDS_PER_TASK, RECORDS_PER_S = 1024, 512
TASKS_PER_WORKER = 60
SERVERS = 4
# The scheduler places 100 pods a second.
_ALL_TRAIN_S = 75.0


def run(workers: int, *, seed: int = 0, tasks: int = 0) -> dict[str, Any]:
    """One job; with ``tasks``, a longer one, which is left when others would have ended."""
    machines = [
        *(Machine(f"spot-{i}", 8, spot=True) for i in range(-(-workers // WORKERS_PER_MACHINE))),
        Machine("reserved", 1 + SERVERS),
    ]
    world = World(machines, seed=seed, sample_s=5.0)
    spec = JobSpec(
        name="job",
        records=(tasks or workers * TASKS_PER_WORKER) * RECORDS_PER_TASK,
        records_per_task=RECORDS_PER_TASK,
        records_per_s=RECORDS_PER_S,
        max_workers=workers,
        servers=SERVERS,
        keeps_state=True,
        seed=seed,
    )
    job = world.submit(spec)
    spot = Spot(
        world.clock,
        world.scheduler,
        random.Random(seed + 1),
        lifetimes=Lifetimes(),
        running=lambda: job.ended_at is None,
    )
    all_train_s = _ALL_TRAIN_S + workers / 100
    memory: list[int] = []
    rates: list[float] = []
    leased = 0

    def look() -> bool:
        nonlocal leased
        rates.append((job.leases - leased) / 5.0)
        leased = job.leases
        return job.ended_at is None

    world.clock.after(all_train_s, lambda: spot.take_share(0.1))
    world.clock.after(all_train_s, lambda: memory.append(bytes_of(job.job)))
    world.clock.every(5.0, look)
    if tasks:
        world.clock.run(until_s=all_train_s + 60)
        main = job.job.tasks.main
        assert main is not None
        assert main.records_done <= job.watermarks.applied
    else:
        world.run_jobs()
    meter, lost = world.meter, job.lost
    us = {name: round(ns / 1e3 / job.leases, 1) for name, ns in meter.cpu_ns.items()}
    trained_s = world.clock.now - (job.began_at or 0.0)
    return {
        "workers": workers,
        "tasks": job.watermarks.tasks,
        "seconds": round(world.clock.now),
        "leases": job.leases,
        "leases_per_s": round(max(rates)),
        "leases_per_cpu_s": round(job.leases / meter.cpu_s()),
        "cpu_us_per_lease": round(meter.cpu_s() * 1e6 / job.leases, 1),
        "by_call_us_per_lease": {name: each for name, each in us.items() if each >= 0.1},
        "cpu_share": round(meter.cpu_s() / trained_s, 3),
        "longest_ms": {
            name: round(meter.longest_ns[name] / 1e6, 1) for name in ("tick", "state", "Lease")
        },
        "us_per_call": meter.us_per_call(),
        "memory_kb_per_worker": round(memory[0] / workers / 1e3, 1),
        "state_bytes_per_worker": round(job.state_bytes / workers),
        "machines_taken": spot.taken,
        "workers_lost": lost,
        "api_creates": meter.calls["api: create"],
        "api_deletes": meter.calls["api: delete"],
        "records_twice": job.watermarks.duplicates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    points = []
    for workers, tasks in [*((workers, 0) for workers in given.workers), (1_000, 10_000_000)]:
        points.append(run(workers, seed=given.seed, tasks=tasks))
        report("cluster_many_workers", {"seed": given.seed, **points[-1]})
    *points, long = points
    made, axes = plots.figure(2, title="One job on machines that are taken away", share=False)
    plots.bars(
        axes[0],
        [f"{point['workers']:,}" for point in points],
        [point["by_call_us_per_lease"] for point in points],
    )
    axes[0].set_ylabel("CPU of the master,\nus per lease")
    names = [f"{point['workers']:,}" for point in points] + ["1,000, 10 million\ntasks"]
    axes[1].bar(names, [p["memory_kb_per_worker"] for p in [*points, long]], color="#55a868")
    axes[1].set_ylabel("memory of the job's\nstate, KB per worker")
    axes[1].set_xlabel("workers")
    plots.save(made, "many_workers")


if __name__ == "__main__":
    main()
