"""A ring that continues the checkpoint of one worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.resuming import identity
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.engine.local import LocalEngine
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.reducer import ReplicatedTorchModel
from torch_edl.tables.watermarks import WHOLE, Watermarks
from torch_edl.training.lockstep import watermarks
from torch_edl.wire import master_pb2 as pb

CONFIG = JobConfig(name="j", model_file="/m.py", data=DataConfig(batch_size=32))
SHARDS = [Shard("a", 5000)]
DATA = identity(CONFIG, SHARDS)


class One(RingRendezvous):
    """A ring of this process, which begins with a checkpoint."""

    worker_id, host, meet_s = 0, "127.0.0.1", 1.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        return pb.Ring(number=1, workers=[0], fresh=True, restored_from=str(self._folder))


def replica(steps: int) -> Replica:
    torch.manual_seed(steps)
    model = nn.Linear(2, 1)
    made = Replica(model, [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)])
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        made.optimizers[0].step()
    made.position.step += steps
    return made


def saved(root: Path, strategy: str, steps: int, write: Callable[[Path], Snapshot]) -> Path:
    def commit(folder: Path) -> Manifest:
        made = write(folder)
        about = {"files": made.files, "watermarks": made.watermarks, "data": DATA}
        return Manifest(job="j", strategy=strategy, steps=steps, **about)

    return layout.save(root, steps, commit)[0]


def test_a_ring_and_one_worker_continue_each_others_checkpoints(tmp_path: Path) -> None:
    alone = replica(3)
    one = saved(tmp_path, "local", 3, alone.snapshot(Watermarks(1, {1: 1024, 2: 64})))
    other = replica(0)
    space = TaskSpace.for_training(SHARDS, CONFIG)
    engine = RingEngine(
        ReplicatedTorchModel(other), One(one), watermarks=partial(watermarks, space)
    )
    engine.join()
    assert (other.position.records, other.position.step) == (space.records_before(2) + 64, 3)
    same(other, alone)
    other.position.records += 32
    ring = saved(tmp_path, "allreduce", 4, engine.snapshot())
    engine.close()
    again = LocalEngine(replica(0), status=WorkerStatus())
    again.connect(pb.Cluster(restored_from=str(ring)))
    assert [again.committed(HeldLease(kind=pb.TASK_TRAIN, task_id=id)) for id in (1, 2, 3)] == [
        WHOLE,
        96,
        0,
    ]


def same(one: Replica, other: Replica) -> None:
    assert torch.equal(one.model.weight, other.model.weight)
    found, wanted = (each.optimizers[0].state_dict()["state"] for each in (one, other))
    assert torch.equal(found[0]["momentum_buffer"], wanted[0]["momentum_buffer"])
