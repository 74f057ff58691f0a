"""A script asks for its preprocessing, and its processes fit it by tasks of the master."""

from __future__ import annotations

import pytest

from master.state.actions import KeepPreprocessing, PreprocessingKept
from tests.unit.master.scripts import script_on_servers_world as on_servers
from tests.unit.master.scripts.script_world import World
from torch_edl.preprocessing import Columns, column
from torch_edl.wire import master_pb2 as pb

Either = World | on_servers.World
SHARDS = [("a", 100), ("b", 60)]


def columns() -> Columns:
    return Columns(word=column("word").vocabulary(9), x=column("x").normalize())


def records(shard: str, start: int, end: int) -> dict[str, list]:
    numbers = range(start, end)
    return {"word": [f"{shard}{n % 7}" for n in numbers], "x": [n / 3 for n in numbers]}


WHOLE = columns().fit(records(name, 0, count) for name, count in SHARDS).to_bytes()


def ask(world: Either, worker: int, spec: str = columns().spec, shards: list = SHARDS):
    request = pb.FitPreprocessingRequest(
        worker_id=worker,
        preprocessing=spec,
        shards=[pb.SourceShard(name=name, records=count) for name, count in shards],
    )
    return world.calls.fit_preprocessing(request, world.now)


def lease(world: Either, worker: int) -> list[pb.LeaseMessage]:
    request = pb.LeaseRequest(worker_id=worker, want=1, fit=True)
    return list(world.calls.lease(request, world.now).leases)


def observe(world: Either, worker: int, task: pb.LeaseMessage) -> bool:
    statistics = columns().statistics()
    statistics.observe(records(task.shard, task.start, task.end))
    request = pb.CompleteTaskRequest(
        worker_id=worker, lease_id=task.lease_id, statistics=statistics.to_bytes()
    )
    return world.calls.complete_task(request, world.now).known


def fit(world: Either, worker: int) -> None:
    while tasks := lease(world, worker):
        assert observe(world, worker, tasks[0])


def keep(world: World) -> None:
    [action] = [a for a in world.job.tick(world.now) if isinstance(a, KeepPreprocessing)]
    assert action.content == WHOLE
    world.job.apply(PreprocessingKept(), world.now)


@pytest.fixture
def world() -> World:
    made = World()
    made.register(11, local_rank=0)
    made.register(12, local_rank=1)
    assert ask(made, 0) == ask(made, 1) == pb.FitPreprocessingResponse(fit=True)
    return made


def test_each_task_counts_once_whoever_dies(world: World) -> None:
    [lost] = lease(world, 0)
    assert world.register(13, local_rank=0) == 2  # in the place of the first
    assert ask(world, 2).fit
    fit(world, 1)
    assert ask(world, 1) is None or ask(world, 1).fit
    assert not observe(world, 0, lost)
    fit(world, 2)
    assert ask(world, 2) is None  # not on the disk
    keep(world)
    for worker in (1, 2):
        assert ask(world, worker).fitted == WHOLE
    assert ask(world, 0).leave
    assert world.ring(1, 2).HasField("ring")


def test_a_restarted_master_continues_the_pass(world: World) -> None:
    for _ in range(20):
        assert observe(world, 0, lease(world, 0)[0])
    [held] = lease(world, 1)
    after = world.again()
    assert ask(after, 0).fit
    assert observe(after, 1, held)
    queue = after.job.tasks.fitting.queue
    assert queue is not None
    assert queue.done == 21
    fit(after, 0)
    keep(after)
    assert ask(after, 1).fitted == WHOLE


@pytest.mark.parametrize(
    ("spec", "shards", "message"),
    [
        (Columns(x=column("x").normalize()).spec, SHARDS, "in one Columns"),
        (columns().spec, [("a", 99), ("b", 60)], "not the same in every process"),
    ],
)
def test_processes_that_fit_different_things_fail_the_job(
    world: World, spec: str, shards: list, message: str
) -> None:
    assert ask(world, 1, spec, shards).leave
    assert world.outcome.usage_error
    assert message in world.outcome.error


def test_on_servers_a_process_that_is_behind_the_others_waits_for_the_servers_alone() -> None:
    world = on_servers.World()
    first, second = world.register(11, 0), world.register(12, 1)
    assert ask(world, first).fit
    world.report(second, on_servers.UNBOUND)
    world.servers_up()
    assert world.start(second) is not None
    fit(world, first)


def test_on_servers_there_is_no_pass_beside_training() -> None:
    world = on_servers.World()
    worker = world.register(11)
    world.report(worker, on_servers.UNBOUND)
    world.servers_up()
    world.tell(worker)
    assert ask(world, worker).leave
    assert "training has begun" in world.outcome.error
