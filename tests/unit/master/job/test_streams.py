"""Tasks of streams are leased when the store has them, and mean the same to the next master."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from master.state.actions import Failure, KeepPlan, PlanKept, StreamGrown
from master.state.job.checkpoint_manager import CheckpointManager
from master.state.job.checkpoint_policy import BestCheckpoint
from master.state.job.preparation import Preparation
from master.state.work.task_scheduler import TaskScheduler
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.data.stream_space import StreamSpace
from torch_edl.wire import master_pb2 as pb


class Stream:
    """The parts of a job that know its stream, without processes."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        config = JobConfig(
            name="j",
            model_file="/m.py",
            data=DataConfig(batch_size=2, records_per_task=4, epochs=0, train=("kafka://h/t",)),
            train=TrainConfig(strategy="ps"),
            checkpoint=CheckpointConfig(dir="/c", every=1),
        )
        self.tasks = TaskScheduler(config)
        self.checkpoints = CheckpointManager(
            config, folder=Path("/job"), resumed=None, best=BestCheckpoint("")
        )
        self.preparation = Preparation(config, self.tasks, resumed=None)
        if state is not None:
            self.tasks.from_state(json.loads(json.dumps(state)), 0.0)
        assert self.grow(9) == [], "too early"
        assert self.preparation.take_actions() == []
        self.space = StreamSpace.for_training(config)
        self.tasks.begin(self.space, None, shards=[], identity={}, resumed=None)
        self.main: Any = self.tasks.main

    def grow(self, end: int, first: int = 0) -> list[Any]:
        event = StreamGrown({"p": (first, end)})
        return self.preparation.stream_grown(event, saving=self.checkpoints.running)

    def keep(self) -> None:
        for action in self.preparation.take_actions():
            self.preparation.plan_kept(PlanKept(action.life, action.end))

    def lease(self, worker: int = 1) -> list[pb.LeaseMessage]:
        held = [lease.id for lease in self.main.held_by(worker)]
        return self.tasks.grant(pb.LeaseRequest(worker_id=worker, held=held, want=1), 0.0)

    def spans(self, worker: int = 1) -> list[tuple[int, int, int]]:
        return [(lease.task_id, lease.start, lease.end) for lease in self.lease(worker)]

    def complete(self, lease: pb.LeaseMessage) -> None:
        request = pb.CompleteTaskRequest(worker_id=1, lease_id=lease.lease_id)
        assert self.tasks.complete(request, 0.0) is not None


def eight() -> Stream:
    stream = Stream()
    stream.grow(8)
    stream.keep()
    return stream


def test_no_task_is_leased_before_it_is_kept() -> None:
    stream = Stream()
    stream.grow(8)
    assert stream.lease() == []
    (action,) = stream.preparation.take_actions()
    assert action == KeepPlan(0, 2)
    assert stream.preparation.take_actions() == []  # it is under way
    assert stream.lease() == []
    stream.preparation.plan_kept(PlanKept(action.life, action.end))
    assert [stream.spans(), stream.spans(2)] == [[(0, 0, 4)], [(1, 4, 8)]]
    assert not stream.tasks.trained


def test_a_master_that_takes_over_means_the_same_tasks() -> None:
    stream = Stream()
    stream.grow(10)
    stream.keep()
    stream.complete(stream.lease()[0])
    (held,) = stream.lease()
    stream.grow(11)
    stream.grow(11)  # nobody has anything to lease: what is there is cut
    again = Stream(stream.tasks.to_state())
    assert [lease.id for lease in again.main.held_by(1)] == [held.lease_id]
    assert again.spans(2) == [(2, 8, 11)], "tasks that were not leased yet are in the store, too"
    again.complete(held)
    again.grow(15)
    again.keep()
    assert again.spans(2)[-1:] == [(3, 11, 15)]


def test_tasks_that_are_done_are_forgotten_but_not_while_a_checkpoint_is_taken() -> None:
    stream = eight()
    cluster = pb.Cluster(servers=[pb.Server(address="a")])
    manifest = Manifest(job="j", strategy="ps", steps=0, data={})
    progress = stream.main.progress()
    stream.checkpoints.take(cluster, progress, manifest, stream.space, steps=0, settled=False)
    stream.complete(stream.lease()[0])
    stream.grow(12)
    assert stream.space.plan.first == 0  # which the checkpoint may begin with
    stream.checkpoints.restore(0)  # ends it
    stream.grow(12)
    assert stream.space.plan.first == 1


def test_a_rollback_to_the_beginning_reads_it_again() -> None:
    stream = eight()
    stream.complete(stream.lease()[0])
    stream.tasks.void()
    stream.tasks.restore(None)
    stream.grow(8)
    assert stream.lease() == []
    stream.keep()
    assert stream.spans() == [(0, 0, 4)]


def test_records_that_are_gone_end_the_job() -> None:
    stream = eight()
    (failure,) = stream.grow(30, first=20)
    assert isinstance(failure, Failure)
    assert failure.usage
    assert "8 to 19" in failure.error
