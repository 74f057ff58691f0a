"""The model of the cluster: who is placed where, who makes room, and a job in which nothing is
lost."""

import random
from collections import Counter

import pytest

from benchmarks.cluster.beside_nginx import Service
from benchmarks.cluster.jobs import World
from benchmarks.cluster.machines import Clock, End, Kubelets, Machine, Pod
from benchmarks.cluster.many_workers import Lifetimes, Spot
from benchmarks.cluster.scheduler import Scheduler, cheapest_victims
from benchmarks.cluster.spec import JobSpec
from benchmarks.cluster.usage import Usage
from benchmarks.cluster.workers import Watermarks
from torch_edl.data.task_space import Shard, TaskSpace


class Cluster:
    """Machines, and pods that do nothing but to leave when they are asked to."""

    def __init__(self, machines: int = 2, cpus: int = 4) -> None:
        self.clock = Clock()
        self.usage = Usage(self.clock)
        self.ended: dict[str, End] = {}
        kubelets = Kubelets(self.clock, random.Random(0), pull_s=10.0)
        self.machines = [Machine(f"m{i}", cpus) for i in range(machines)]
        self.scheduler = Scheduler(self.clock, self.machines, kubelets, self.usage)

    def pod(self, name: str, *, leaves_in_s: float | None = 0.0, **fields) -> Pod:
        """Submits a pod; ``leaves_in_s``: after SIGTERM, None: not before SIGKILL."""

        def terminate(pod: Pod) -> None:
            if leaves_in_s is not None:
                self.clock.after(leaves_in_s, lambda: self.scheduler.exited(pod, 143))

        pod = Pod(
            name=name,
            run=lambda pod: None,
            terminate=terminate,
            ended=lambda end: self.ended.__setitem__(name, end),
            **{"user": "u", "cpus": 1, "priority": 0, "image": "i", **fields},
        )
        self.scheduler.submit(pod)
        return pod

    def pass_time(self, seconds: float) -> None:
        self.clock.run(until_s=self.clock.now + seconds)


def test_events_happen_in_order_and_cancelled_ones_do_not() -> None:
    clock, seen = Clock(), []
    clock.after(2.0, lambda: seen.append("late"))
    clock.after(1.0, lambda: seen.append("first"))
    clock.after(1.0, lambda: seen.append("second"))
    clock.after(1.5, lambda: seen.append("cancelled")).cancel()
    clock.run()
    assert seen == ["first", "second", "late"]
    assert clock.now == 2.0


def test_pods_are_spread_and_the_last_ones_wait() -> None:
    cluster = Cluster()
    pods = [cluster.pod(f"p{i}") for i in range(9)]
    cluster.pass_time(1.0)
    assert [m.used for m in cluster.machines] == [4, 4]
    assert [pod.state for pod in pods] == ["bound"] * 8 + ["pending"]
    cluster.scheduler.delete(pods[0], 30.0)
    cluster.pass_time(1.0)
    assert pods[8].state == "bound"


def test_only_the_first_pod_of_a_machine_pulls_the_image() -> None:
    cluster = Cluster(machines=1)
    first = cluster.pod("first")
    cluster.pass_time(10.5)
    assert first.state == "bound"
    cluster.pass_time(3.0)
    assert first.state == "running"
    second = cluster.pod("second")
    cluster.pass_time(3.5)
    assert second.state == "running"


def test_an_urgent_pod_preempts_the_least_urgent_one_and_waits_for_its_grace() -> None:
    cluster = Cluster(machines=1, cpus=2)
    low = cluster.pod("low", priority=1, leaves_in_s=None, grace_s=30.0)
    middle = cluster.pod("middle", priority=2)
    cluster.pass_time(20.0)
    high = cluster.pod("high", priority=9)
    cluster.pass_time(29.0)
    assert (low.state, middle.state, high.state) == ("terminating", "running", "pending")
    # Room that is being made is for the pod that it is made for.
    other = cluster.pod("other", priority=1)
    cluster.pass_time(2.0)
    assert cluster.ended == {"low": End(signal=9)}
    assert (high.state, other.state) == ("bound", "pending")


@pytest.mark.parametrize(
    ("missing", "priorities", "chosen"),
    [
        # The least urgent pods go, whatever their number, then the fewest.
        ([Counter(cpu=1), Counter(cpu=2)], [[5], [1, 1]], (1, [1, 1])),
        ([Counter(cpu=2), Counter(cpu=1)], [[1, 1], [1, 1]], (1, [1])),
        ([Counter(cpu=1), Counter(cpu=1)], [[1], [1]], (0, [1])),
        ([Counter(cpu=3), Counter(gpu=1)], [[1, 1], [1, 1]], None),
    ],
)
def test_the_cheapest_victims_make_room(
    missing: list[Counter[str]], priorities: list[list[int]], chosen: tuple[int, list[int]] | None
) -> None:
    choices = [
        (machine, missing[machine], [(each, each, Counter(cpu=1)) for each in pods])
        for machine, pods in enumerate(priorities)
    ]
    assert cheapest_victims(choices) == chosen


def test_equal_pods_preempt_nobody() -> None:
    cluster = Cluster(machines=1, cpus=1)
    first = cluster.pod("first", priority=5)
    second = cluster.pod("second", priority=5)
    cluster.pass_time(60.0)
    assert (first.state, second.state) == ("running", "pending")


def test_a_gang_waits_for_all_of_its_cpus() -> None:
    cluster = Cluster()
    cluster.scheduler.hold("a", 5)
    cluster.scheduler.hold("b", 5)
    first = [cluster.pod(f"a{i}", group="a") for i in range(5)]
    second = [cluster.pod(f"b{i}", group="b") for i in range(5)]
    cluster.pass_time(20.0)
    assert {pod.state for pod in first} == {"running"}
    assert {pod.state for pod in second} == {"pending"}  # though three of them would fit
    for pod in first:
        cluster.scheduler.exited(pod, 0)
    cluster.scheduler.release("a")
    cluster.pass_time(20.0)
    assert {pod.state for pod in second} == {"running"}


def test_a_machine_that_is_taken_away_takes_its_pods_along() -> None:
    cluster = Cluster()
    pods = [cluster.pod(f"p{i}", leaves_in_s=None) for i in range(8)]
    cluster.pass_time(20.0)
    cluster.scheduler.reclaim(cluster.machines[0], 30.0)
    cluster.pass_time(31.0)
    assert len(cluster.ended) == 4
    assert cluster.usage.bound["u"] == 4
    back = [cluster.pod(f"q{i}") for i in range(4)]
    cluster.pass_time(1.0)
    assert {pod.state for pod in back} == {"pending"}
    cluster.scheduler.add(Machine("m2", 4))
    cluster.pass_time(1.0)
    assert {pod.machine.name for pod in back if pod.machine} == {"m2"}
    assert sum(pod.state == "running" for pod in pods) == 4


def test_cpu_seconds_are_exact() -> None:
    cluster = Cluster(machines=1)
    pod = cluster.pod("p", cpus=3)
    cluster.pass_time(20.0)
    cluster.scheduler.exited(pod, 0)
    cluster.pass_time(10.0)
    cluster.usage.sample()
    # Placed after one cycle of the scheduler, and free half a second after its end.
    assert cluster.usage.bound_s["u"] == pytest.approx(3 * (20.0 - 0.01 + 0.5))


def test_a_record_that_is_left_out_or_pushed_twice_is_noticed() -> None:
    marks = Watermarks(TaskSpace([Shard("a", 20)], 10))
    marks.push(0, 0, 4)
    marks.push(0, 0, 4)
    assert marks.duplicates == 4
    with pytest.raises(AssertionError, match="task 0"):
        marks.push(0, 5, 10)
    marks.push(0, 4, 10)
    with pytest.raises(AssertionError, match="task 1: 0 records"):
        marks.check()
    marks.push(1, 0, 10)
    marks.check()


def _world(seed: int) -> World:
    return World([Machine(f"m{i}", 8) for i in range(2)], seed=seed, pull_s=5.0)


_JOB = JobSpec(
    name="job",
    records=100_003,
    records_per_s=500,
    max_workers=10,
    servers=2,
    records_per_task=1_000,
    tick_s=0.5,
)


def test_a_job_of_the_real_master_loses_workers_and_no_record() -> None:
    world = _world(seed=3)
    job = world.submit(_JOB)
    world.clock.run(until_s=25.0)
    assert job.running() == 10

    def kill_one() -> bool:
        workers = [pod for machine in world.scheduler.machines.values() for pod in machine.pods]
        victims = [pod for pod in workers if "-worker-" in pod.name and pod.state == "running"]
        if victims and job.ended_at is None:
            victim = victims[0]
            if int(world.clock.now) % 2:
                world.kubelets.kill(victim, world.scheduler.removed)
            else:
                world.scheduler.delete(victim, 30.0)
        return job.ended_at is None

    world.clock.every(3.0, kill_one)
    world.run_jobs()  # checks the records
    world.clock.run(until_s=world.clock.now + 1.0)
    assert job.lost > 3
    assert world.usage.bound == {"job": 0}
    assert world.usage.busy == {"job": 0}


def test_a_run_is_a_function_of_its_seed() -> None:
    ends = []
    for seed in (1, 1, 2):
        world = _world(seed)
        world.submit(_JOB)
        ends.append(world.run_jobs())
    assert ends[0] == ends[1]
    assert ends[0] != ends[2]


def test_lifetimes_follow_their_law() -> None:
    law, rng = Lifetimes(), random.Random(0)
    lives = sorted(law.draw(rng) for _ in range(2_000))
    for hours in (0.5, 2.0, 12.0, 23.5):
        share = sum(life <= hours * 3600 for life in lives) / len(lives)
        assert share == pytest.approx(law.before(hours * 3600), abs=0.03)
    assert lives[-1] <= law.limit


def test_machines_come_back_and_the_job_goes_on() -> None:
    machines = [*(Machine(f"s{i}", 4, spot=True) for i in range(3)), Machine("stays", 3)]
    world = World(machines, seed=0, pull_s=5.0)
    job = world.submit(_JOB)
    spot = Spot(
        world.clock,
        world.scheduler,
        random.Random(0),
        lifetimes=Lifetimes(share=1.0, early=30.0),
        notice_s=3.0,
        unannounced=0.5,
        back_s=5.0,
        running=lambda: job.ended_at is None,
    )
    world.run_jobs()  # checks the records
    assert spot.taken > 3
    assert job.lost > 3


def test_replicas_follow_the_load_and_a_worker_makes_room() -> None:
    world = _world(seed=0)
    job = world.submit(_JOB)
    service = Service(world, load=lambda t: 4.0 if 30 <= t < 60 else 0.5, until_s=1_000.0)
    world.clock.run(until_s=29.0)
    assert world.usage.bound["nginx"] == 1
    world.clock.run(until_s=50.0)
    assert (world.usage.busy["nginx"], service.most) == (6, 6)
    assert sum(world.usage.bound.values()) == 16  # all CPUs
    assert world.scheduler.preempted > 0
    world.run_jobs()
    assert job.lost == world.scheduler.preempted
    world.clock.run(until_s=600.0)
    assert world.usage.bound["nginx"] == 1
