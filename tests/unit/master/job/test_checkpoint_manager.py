"""When checkpoints are due, and what becomes of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    Failure,
    Note,
    OutputWritten,
    Prune,
    Saved,
    SaveServers,
    WriteOutput,
)
from master.state.job.best_checkpoint import BestCheckpoint
from master.state.job.checkpoint_manager import CheckpointManager
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

CLUSTER = pb.Cluster(incarnation=1, servers=[pb.Server(address="s0", incarnation=2)])
MANIFEST = Manifest(job="j", strategy="ps", steps=0)
SPACE = TaskSpace([Shard("a", 40)], 4)


def saved(steps: int) -> Saved:
    return Saved(Path(f"/ck/{steps}"), Manifest(job="j", strategy="ps", steps=steps))


class World:
    """The checkpoints of a job, and the servers that take them."""

    def __init__(self, newest: Saved | None = None, **config: Any) -> None:
        job = JobConfig(name="j", model_file="/m.py", checkpoint=CheckpointConfig(**config))
        self.made = CheckpointManager(
            job, folder=Path("/tmp/x"), resumed=newest, best=BestCheckpoint("")
        )
        self.said: list[Note | Failure] = []

    def due(self, steps: int, *, settled: bool = False, now: float = 0.0) -> bool:
        """Begins one that is due."""
        self.made.settle(CLUSTER, trained=settled)
        if not self.made.due(steps, settled=settled, now=now):
            return False
        self.made.take(CLUSTER, Watermarks(), MANIFEST, SPACE, steps=steps, settled=settled)
        (action,) = self.made.take_actions()
        assert isinstance(action, SaveServers)
        assert (action.incarnation, action.root) == (1, self.made.root)
        return True

    def done(self, steps: int) -> None:
        self.said += self.made.apply(CheckpointSaved(saved(steps), 1), 0.0)
        (action, *_) = self.made.take_actions()
        assert action == Prune(saved(steps).path, 3)

    def failed(self, now: float) -> Note | Failure:
        (said,) = self.made.apply(CheckpointFailed("disk", 1), now)
        return said


def test_each_crossing_once_one_at_a_time() -> None:
    w = World(dir="/ck", every=10)
    assert not w.due(9)
    assert w.due(13)
    assert not w.due(25)
    w.done(13)
    assert w.due(25)
    w.done(25)
    assert not w.due(29)


def test_after_a_resume_the_next_multiple() -> None:
    w = World(saved(25), dir="/ck", every=10, resume=True)
    assert not w.due(29)
    assert w.due(30)


def test_the_last_one_only_where_it_is_wanted() -> None:
    assert World().made.complete
    assert not World().due(5, settled=True)
    w = World(output="/out")
    assert w.made.root == Path("/tmp/x/final")
    assert not w.made.complete
    assert w.due(5, settled=True)
    w.made.apply(CheckpointSaved(saved(5), 1), 0.0)
    assert w.made.take_actions()[1:] == [WriteOutput(Path("/ck/5"), Path("/out"))]
    assert not w.made.complete
    w.made.apply(OutputWritten(), 0.0)
    assert w.made.complete
    assert not w.due(5, settled=True)


def test_a_periodic_one_at_the_end_is_not_the_last() -> None:
    w = World(dir="/ck", every=5)
    assert w.due(5)
    w.done(5)
    assert not w.made.complete
    assert w.due(5, settled=True)


def test_one_that_failed_waits_and_then_comes_at_once() -> None:
    w = World(dir="/ck", every=10)
    assert w.due(10, now=0.0)
    assert isinstance(w.failed(1.0), Note)
    assert not w.due(11, now=5.9)
    assert w.due(11, now=6.0)
    w.done(11)
    assert not w.due(19, now=7.0)


def test_events_of_an_earlier_incarnation_are_ignored() -> None:
    w = World(dir="/ck", every=10)
    assert w.due(10)
    w.made.restore(2)
    assert w.made.apply(CheckpointSaved(saved(10), 1), 0.0) == []
    assert w.made.newest is None
