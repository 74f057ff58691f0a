"""Each number of each request, at its extremes: refused by name, or taken; the server continues."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.ps_server.conftest import described, whole
from tests.unit.wire.extremes import variants
from torch_edl.config import TrainConfig
from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.ps_server.push_barrier import HoldEndedError
from torch_edl.ps_server.service import PserverService
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.stub import CALLS

FENCE = pb.Fence(job="j", incarnation=1)
IDS = np.array([1, 5])
HYPER: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "nesterov": 0},
    "adagrad": {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-10},
    "adamw": {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1},
    "rmsprop": {"lr": 0.1, "alpha": 0.9, "eps": 1e-8, "momentum": 0.1, "centered": 1},
    "ftrl": {
        "lr": 0.1,
        "lr_power": -0.5,
        "initial_accumulator_value": 0.1,
        "l1": 0.1,
        "l2": 0.1,
        "beta": 0.1,
    },
}


class World:
    """A server's service without its process, and what a worker says to it."""

    def __init__(self, kind: str, directory: Path, *, sync: bool = False) -> None:
        self.fatal = threading.Event()
        rules = TrainConfig(mode="sync" if sync else "async", staleness=0)
        self.shard = ModelShard(rules, None, self.fatal.set)
        service = PserverService(
            self.shard, fence=pb.Fence(job="j", incarnation=1), stem="shard-0-of-1"
        )
        self._handlers: dict[str, Any] = service.handlers()
        self._data = service.data_answers()
        normal = pb.Initializer(kind="normal", args={"mean": 0.0, "std": 1.0})
        self.requests: dict[str, Any] = {
            "PushDenseParameters": described(
                {
                    "buffer": np.zeros(2, np.float32),
                    "frozen": np.zeros(1, np.float32),
                    "weight": np.ones(3, np.float32),
                },
                kind=kind,
                hyper=HYPER[kind],
                groups={"buffer": -2, "frozen": -1},
                seed=1,
            ),
            "PushEmbeddingTableInfos": pb.PushEmbeddingTableInfosRequest(
                infos=[pb.EmbeddingTableInfo(name="t", dim=2, initializer=normal)]
            ),
            "Pull": pb.PullRequest(
                dense=True, tables=[pb.TableIds(name="t", ids=IDS.tobytes())], read_only=True
            ),
            "PushGradients": pb.PushGradientsRequest(
                range=pb.RecordRange(task_id=3, last=4),
                dense=codec.to_proto(np.ones(6, np.float32)),
                tables=[
                    pb.TableGradient(
                        name="t", ids=IDS.tobytes(), values=codec.to_proto(np.ones((2, 2), "f4"))
                    )
                ],
                learning_rates=[0.1],
                without_gradient=[1],
            ),
            "GetWatermarks": pb.GetWatermarksRequest(task_ids=[3]),
            "Hold": pb.HoldRequest(timeout_ms=20),
            "Snapshot": pb.SnapshotRequest(
                targets=pb.Watermarks(tasks=[pb.Watermark(task_id=3)]), directory=str(directory)
            ),
            "Flush": pb.FlushRequest(),
            "Release": pb.ReleaseRequest(),
        }
        for request in self.requests.values():
            request.fence.CopyFrom(FENCE)

    def say(self, method: str, request: Any = None) -> Any:
        request = self.requests[method] if request is None else request
        if isinstance(request, CALLS):
            field = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
            return whole(self._data[field](Framed(request), True))
        return self._handlers[method](request, None)

    def goes_on(self) -> None:
        """The next worker's push counts, and what it pulls is finite."""
        self.say("Release")
        push = self.requests["PushGradients"]
        push.range.task_id, push.version = 77, self.shard.version
        answer = self.say("PushGradients", push)
        assert answer.accepted
        assert not answer.duplicate
        pulled = self.say("Pull")
        assert np.isfinite(codec.from_proto(pulled.dense)).all()
        assert np.isfinite(codec.from_proto(pulled.vectors[0])).all()
        assert not self.fatal.is_set()


FAST = {("ftrl", False), ("sgd", True)}


@pytest.mark.parametrize(
    ("kind", "sync"),
    [
        pytest.param(kind, sync, marks=[] if (kind, sync) in FAST else pytest.mark.slow)
        for kind, sync in (*((kind, False) for kind in sorted(HYPER)), ("sgd", True))
    ],
)
def test_no_number_ends_or_poisons_a_server(kind: str, sync: bool, tmp_path: Path) -> None:
    setup = ("PushDenseParameters", "PushEmbeddingTableInfos")
    methods = [m for m in World(kind, tmp_path).requests if m not in ("Flush", "Release")]
    for method in methods:
        for what, request in variants(World(kind, tmp_path).requests[method]):
            if what.startswith("retired_before = ") and request.retired_before > 0:
                continue  # the master's word: what it calls done counts as done
            world = World(kind, tmp_path, sync=sync)
            for step in setup[: setup.index(method) if method in setup else 2]:
                world.say(step)
            if method == "Snapshot":
                world.say("Hold")
            try:
                world.say(method, request)
            except (UsageError, StaleIncarnationError, HoldEndedError):
                pass
            except Exception as error:
                pytest.fail(f"{method}, {what}: {error!r}")
            try:
                if world.shard.dense is None:
                    world.say("PushDenseParameters")
                if not world.shard.tables:
                    world.say("PushEmbeddingTableInfos")
                world.goes_on()
            except UsageError as error:
                # A model of another dimension, or frozen, does not fit the push.
                if method not in setup:
                    pytest.fail(f"after {method}, {what}: {error}")
            except Exception as error:
                pytest.fail(f"after {method}, {what}: {error!r}")
