"""Two jobs of 175 CPUs each on 320 CPUs, the second submitted at 300 s: gang against elastic.

    python -m benchmarks.cluster.two_jobs [--seed 0]

The published figures are 1300 s until both are done with gang scheduling, and 1100 s with elastic
jobs. Work per job is what the published figure implies: with gangs the jobs run one after the
other, so a lone job takes 650 s. Every pod has one CPU: the master, four parameter servers, and up
to 170 workers. An elastic job begins with one worker, and takes what is free.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.cluster import plots
from benchmarks.cluster.jobs import TrainingJob, World
from benchmarks.cluster.machines import Machine
from benchmarks.cluster.spec import JobSpec
from benchmarks.report import report

CPUS, MACHINES = 320, 10
SECOND_AT_S = 300.0
RECORDS = 50_300_000
"""A lone job of 170 workers takes 650 s, start included."""


def run(*, gang: bool, jobs: int = 2, seed: int = 0) -> World:
    """The jobs from the first submission until the last one has ended."""
    machines = [Machine(f"machine-{i}", CPUS // MACHINES) for i in range(MACHINES)]
    world = World(machines, seed=seed)
    for number in range(jobs):
        spec = JobSpec(
            name=f"job-{number + 1}",
            records=RECORDS,
            records_per_s=500,
            min_workers=170 if gang else 1,
            max_workers=170,
            gang=gang,
            seed=seed * 100 + number,
        )
        assert spec.cpus == 175
        world.submit(spec, at_s=number * SECOND_AT_S)
    world.run_jobs()
    return world


def _figures(world: World) -> dict[str, Any]:
    makespan, usage = world.clock.now, world.usage
    return {
        "makespan_s": round(makespan),
        "utilisation_bound": round(sum(usage.bound_s.values()) / makespan / CPUS, 3),
        "utilisation_busy": round(sum(usage.busy_s.values()) / makespan / CPUS, 3),
        "jobs": [_of_job(world, job) for job in world.jobs],
    }


def _of_job(world: World, job: TrainingJob) -> dict[str, Any]:
    assert job.began_at is not None
    assert job.ended_at is not None
    return {
        "waits_for_cpus_s": round(world.scheduler.waited_s[job.spec.name][0], 1),
        "first_step_s": round(job.began_at - job.submitted_at, 1),
        "takes_s": round(job.ended_at - job.submitted_at),
        "workers_replaced": job.lost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    lone = run(gang=True, jobs=1, seed=seed)
    worlds = {"gang": run(gang=True, seed=seed), "elastic": run(gang=False, seed=seed)}
    made, axes = plots.figure(2, title="Two jobs of 175 CPUs on 320 CPUs, the second after 300 s")
    for axis, (name, world) in zip(axes, worlds.items(), strict=True):
        plots.stack(axis, world.usage.times, world.usage.series["bound"], total=CPUS)
        axis.set_title(f"{name}: {world.clock.now:.0f} s", fontsize=9, loc="left")
    axes[-1].set_xlabel("seconds")
    figures = {name: _figures(world) for name, world in worlds.items()}
    published = {"gang_s": 1300, "elastic_s": 1100}
    picture = plots.save(made, "two_jobs")
    report(
        "cluster_two_jobs",
        {
            "seed": seed,
            "lone_job_s": round(lone.clock.now),
            **figures,
            "published": published,
            "picture": picture,
        },
    )


if __name__ == "__main__":
    main()
