"""One training job of low priority beside an autoscaled web service, over a day.

    python -m benchmarks.cluster.beside_nginx [--seed 0]

NGINX has a daily load curve and the priority; its replicas are added and removed as Kubernetes'
autoscaler does (70% of a CPU of work for each replica, a look every 15 s, five minutes before
replicas go). The training job takes every CPU that is left, and gives it back: a replica that fits
nowhere preempts a worker, which finishes its update and returns its tasks. The published figure is
a utilisation above 90% throughout.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.cluster import plots
from benchmarks.cluster.jobs import World
from benchmarks.cluster.machines import PENDING, RUNNING, Machine, Pod
from benchmarks.cluster.spec import JobSpec
from benchmarks.report import report

DAY_S = 86_400.0
NAME = "nginx"
_SYNC_S = 15.0
# CPUs of work for each replica.
_TARGET = 0.7
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


class Service:
    """A deployment of replicas of one CPU, and its autoscaler.

    Args:
        load: CPUs of work at a time.
    """

    def __init__(self, world: World, *, load: Callable[[float], float], until_s: float) -> None:
        self._clock, self._scheduler, self._usage = world.clock, world.scheduler, world.usage
        self._load, self._until_s = load, until_s
        self._pods: list[Pod] = []
        self._wishes: deque[tuple[float, int]] = deque()
        self._count = 0
        self.most = 0
        """Replicas at the peak."""
        self.overloaded_s = 0.0
        """Seconds in which there was more work than the replicas that ran could do."""
        self._clock.every(_SYNC_S, self._sync)

    def _sync(self) -> bool:
        now = self._clock.now
        load = self._load(now)
        running = sum(pod.state == RUNNING for pod in self._pods)
        if load > running and now > 60.0:
            self.overloaded_s += _SYNC_S
        self._wishes.append((now, math.ceil(load / _TARGET)))
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
        def serves(pod: Pod, sign: int) -> None:
            self._usage.add(self._usage.busy, NAME, sign * pod.cpus)

        def ends(pod: Pod) -> None:
            serves(pod, -1)
            self._scheduler.exited(pod, 0)

        self._count += 1
        pod = Pod(
            name=f"{NAME}-{self._count}",
            user=NAME,
            cpus=1,
            priority=100,
            image=NAME,
            run=lambda pod: serves(pod, 1),
            terminate=ends,
        )
        self._scheduler.submit(pod)
        return pod


CPUS, MACHINES = 320, 10
RECORDS_PER_S, TASK_S = 512, 60
_STARTED_S, _LAST_S = 300.0, 3.0 * TASK_S
"""The utilisation counts from then on, and until so long before the end: the last tasks end one by
one."""


def run(*, seed: int = 0, day_s: float = DAY_S) -> tuple[World, Service]:
    """From midnight until the job has ended, which has work for about a day."""
    machines = [Machine(f"machine-{i}", CPUS // MACHINES) for i in range(MACHINES)]
    world = World(machines, seed=seed, sample_s=2.0)
    load = daily_load(random.Random(seed + 1), low=30, high=150)
    service = Service(world, load=load, until_s=2 * DAY_S)
    left = sum(CPUS - load(t) / _TARGET - 5 for t in range(0, int(day_s), 60)) * 60
    job = JobSpec(
        name="training",
        records=int(left * RECORDS_PER_S * 0.97),
        records_per_task=RECORDS_PER_S * TASK_S,
        records_per_s=RECORDS_PER_S,
        max_workers=CPUS,
        # Of a day every tenth of a second there would be too many.
        heartbeat_s=10.0,
        tick_s=1.0,
        seed=seed,
    )
    world.submit(job)
    world.run_jobs()
    return world, service


def _figures(world: World, service: Service) -> dict[str, Any]:
    usage, job = world.usage, world.jobs[0]
    assert job.ended_at is not None
    counts = [i for i, t in enumerate(usage.times) if _STARTED_S <= t < job.ended_at - _LAST_S]
    bound, busy = usage.total("bound"), usage.total("busy")
    alone = usage.series["bound"][NAME]
    waited = sorted(world.scheduler.waited_s[NAME])
    return {
        "hours": round(world.clock.now / 3600, 1),
        "utilisation_mean": round(sum(bound[i] for i in counts) / len(counts) / CPUS, 3),
        "utilisation_least": round(min(bound[i] for i in counts) / CPUS, 3),
        "at_work_mean": round(sum(busy[i] for i in counts) / len(counts) / CPUS, 3),
        "at_work_least": round(min(busy[i] for i in counts) / CPUS, 3),
        "nginx_alone_mean": round(sum(alone[i] for i in counts) / len(counts) / CPUS, 3),
        "nginx_least_most": [int(min(alone[i] for i in counts)), int(max(alone))],
        "nginx_waits_median_s": round(waited[len(waited) // 2], 2),
        "nginx_waits_longest_s": round(waited[-1], 1),
        "nginx_overloaded_s": round(service.overloaded_s),
        "preempted": world.scheduler.preempted,
        "workers_lost": job.lost,
        "records": job.spec.records,
        "records_twice": job.watermarks.duplicates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    world, service = run(seed=seed)
    figures, usage = _figures(world, service), world.usage
    made, axes = plots.figure(2, title="One training job of low priority beside NGINX, over a day")
    hours = [t / 3600 for t in usage.times]
    plots.stack(axes[0], hours, usage.series["bound"], total=CPUS)
    axes[1].plot(hours, [each / CPUS for each in usage.total("bound")], label="held by pods")
    axes[1].plot(
        hours, [each / CPUS for each in usage.total("busy")], label="at work", linewidth=0.7
    )
    axes[1].axhline(0.9, color="black", linewidth=0.8, linestyle="--")
    axes[1].set_ylim(0.8, 1.01)
    axes[1].set_ylabel("share of the CPUs")
    axes[1].set_xlabel("hours")
    axes[1].legend(loc="lower right", fontsize=8)
    picture = plots.save(made, "beside_nginx")
    report(
        "cluster_beside_nginx",
        {"seed": seed, **figures, "published": "above 0.9", "picture": picture},
    )


if __name__ == "__main__":
    main()
