"""On real servers: values keep their type, tied weights their names, sparse gradients are taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import torch_edl
from master.runtime.effects import Effects
from master.state.actions import SaveServers
from tests.unit.engine.servers.trained import TOKEN, Trained, sgd
from torch_edl.checkpoint.export import write_output
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.interfaces import Batch
from torch_edl.nn.model_tables import dense_names
from torch_edl.pytorch.replica import read_model
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

ODD = 2**25 + 1  # no float32
BATCH = 8
STEPS = 3


class Model(nn.Module):
    """Buffers of every type, one that is assigned anew, tied weights, a sparse embedding."""

    def __init__(self, value: int = ODD) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("offsets", torch.tensor([0, value]))
        self.register_buffer("wide", torch.tensor([1 / 3, value], dtype=torch.float64))
        self.register_buffer("known", torch.tensor([True, value == ODD]))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("passing", torch.zeros(2, dtype=torch.complex64), persistent=False)
        self.rows = torch_edl.nn.Embedding(None, 2, initializer="zeros")
        self.few = nn.Embedding(4, 2, sparse=True)
        self.bounded = torch_edl.nn.Embedding(5, 2, name="shared")
        self.same = torch_edl.nn.Embedding(5, 2, name="shared")
        self.first = nn.Linear(2, 2, bias=False)
        self.norm = nn.BatchNorm1d(2)
        self.last = nn.Linear(2, 2, bias=False)
        self.last.weight = self.first.weight
        self.again = self.norm

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(ids)
            self.mean = self.mean + 1  # another tensor each time
        found = self.rows(ids + self.offsets[1]) + self.few(ids % 4)
        found = found + self.bounded(ids % 2) - self.same(ids % 3)
        return self.last(self.norm(self.first(found))).sum(1, keepdim=True)


def batches() -> list[Batch]:
    ids = torch.arange(BATCH)
    return [Batch(ids + step, ids.float().view(-1, 1), BATCH) for step in range(STEPS)]


def save(made: Trained, servers: list[str], root: Path) -> Path:
    """An output, as the master writes it at the end."""
    space = TaskSpace([Shard("x", STEPS * BATCH)], records_per_task=100, batch_size=BATCH)
    manifest = Manifest(job="t", strategy="ps", steps=0)
    action = SaveServers(servers, 1, Watermarks(), manifest, space, root)
    saved = Effects(token=TOKEN).save_servers(action)
    write_output(saved.path, root / "output")
    return root / "output"


def test_the_model_comes_back_bit_by_bit(
    start_servers: Callable[..., list[pb.Server]], tmp_path: Path
) -> None:
    servers = start_servers(2)
    model = Model()
    made = Trained(model, sgd, servers, staleness=0)
    made.train(batches())
    assert model.offsets.tolist() == [0, ODD]
    output = save(made, servers, tmp_path)
    written = load_file(output / "model.safetensors")
    wanted = {name: getattr(part, key).detach() for name, part, key, _ in dense_names(model)}
    assert written.keys() == wanted.keys()
    assert {n: v.dtype for n, v in written.items()} == {n: v.dtype for n, v in wanted.items()}
    with made.engine.evaluating():
        for name, value in wanted.items():
            torch.testing.assert_close(written[name], value, rtol=0, atol=0)
    assert (written["seen"], written["mean"].tolist()) == (STEPS * BATCH, [STEPS] * 2)
    assert written["norm.num_batches_tracked"] == STEPS
    # The rows are those of ids beyond float32, and the sparse embedding was trained.
    rows = load_file(output / "embeddings" / "rows.safetensors")
    assert rows["ids"].tolist() == [ODD + k for k in range(BATCH + STEPS - 1)]
    assert not torch.equal(model.few.weight, Model().few.weight)

    # One layout, whoever gathers it; and the class takes it.
    gathered, exported = made.state_dict(), read_model(output)
    assert gathered.keys() == exported.keys() == Model().state_dict().keys()
    for name, value in gathered.items():
        torch.testing.assert_close(value, exported[name], rtol=0, atol=0)
    alone = Model(value=7)
    alone.load_state_dict(gathered)
    ids = batches()[0].features
    with made.engine.evaluating() as prepare:
        torch.testing.assert_close(alone.eval()(ids), model.eval()(prepare(ids)))
    with pytest.raises(UsageError, match=r"rows of table 'rows' are on parameter servers; job\."):
        model.state_dict()
    with pytest.raises(RuntimeError, match="--load DIR"):
        model.load_state_dict(gathered)
    with pytest.raises(UsageError, match=r"load_state_dict\(\) gave it rows .*--load DIR"):
        Trained(alone, sgd, servers)

    again = Model(value=7)
    restored = start_servers(1, f"--restore={output}")
    Trained(again, sgd, restored)
    for name in ("offsets", "wide", "known", "seen"):
        assert torch.equal(again.get_buffer(name), model.get_buffer(name))


def test_the_first_workers_values_hold_for_all(
    start_servers: Callable[..., list[pb.Server]],
) -> None:
    servers = start_servers(2)
    Trained(Model(), sgd, servers)
    second = Model(value=7)
    Trained(second, sgd, servers)
    assert second.offsets.tolist() == [0, ODD]
    third = Model()
    third.seen = third.seen.int()
    with pytest.raises(UsageError, match=r"another layout.*'seen'.*int64.*int32"):
        Trained(third, sgd, servers)


def test_types_that_lose_something_are_refused() -> None:
    double = nn.Linear(2, 2).double()
    with pytest.raises(UsageError, match=r"parameter weight: float64.*\.float\(\)"):
        Trained(double, sgd, [])
    angles = nn.Linear(2, 2)
    angles.register_buffer("angles", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match=r"buffer angles: complex64 .*persistent=False"):
        Trained(angles, sgd, [])
