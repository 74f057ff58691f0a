"""Dense parameters of a shard against torch.optim, where a loss does not reach all of them; and
the mean of pushes in sync mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.ps_server.conftest import described
from torch_edl.checkpoint import layout, reader, tensor_files
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import TrainConfig
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

NAMES = ("a", "b", "c")
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999}


class Server:
    """A shard of three parameters of two numbers each, beginning at 1."""

    def __init__(
        self,
        kind: str,
        hyper: dict[str, float],
        *,
        quorum: int = 0,
        source: reader.CheckpointReader | None = None,
        groups: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        rules = TrainConfig(
            mode="sync" if quorum else "async", grads_to_wait=quorum or 1, staleness=0
        )
        self.shard = ModelShard(rules, source, lambda: pytest.fail("an update failed half-way"))
        ones = dict.fromkeys(NAMES, np.ones(2, np.float32))
        of = dict(zip(NAMES, groups, strict=True))
        self.shard.initialize(described(ones, kind=kind, hyper=hyper, groups=of))
        self._records = 0

    def push(self, *gradients: float | None, stale: float = 7.0) -> None:
        """One number for all of a parameter; None: the loss did not reach it."""
        self._records += 1
        records = pb.RecordRange(first=self._records - 1, last=self._records)
        request = pb.PushGradientsRequest(range=records, version=self.shard.version)
        if gradients:
            flat = np.repeat([stale if g is None else g for g in gradients], 2)
            request.dense.CopyFrom(codec.to_proto(flat.astype(np.float32)))
            request.without_gradient.extend(i for i, g in enumerate(gradients) if g is None)
        assert self.shard.push(request).accepted

    @property
    def values(self) -> list[float]:
        """Values of the three parameters."""
        assert self.shard.dense is not None
        return self.shard.dense.flat[::2].tolist()

    def save(self, folder: Path) -> None:
        folder.mkdir()
        _, begun = self.shard.cut(self.shard.watermarks())
        commit(folder, tensor_files.write_shard(*begun, folder, "shard-0-of-1"))


def commit(folder: Path, sizes: dict[str, int]) -> None:
    manifest = Manifest(job="j", strategy="ps", steps=1, shards=1, files=sizes, versions=(1,))
    layout.seal(folder, manifest)


class Torch:
    """The same in torch."""

    def __init__(self) -> None:
        self._parameters = [torch.nn.Parameter(torch.ones(2)) for _ in NAMES]
        self._optimizer = torch.optim.Adam(self._parameters, lr=0.1)

    def push(self, *gradients: float | None) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.full((2,), gradient)
        self._optimizer.step()

    @property
    def values(self) -> list[float]:
        return [parameter[0].item() for parameter in self._parameters]


def test_each_parameter_counts_its_own_steps_as_in_torch(tmp_path: Path) -> None:
    ours, theirs = Server("adam", ADAM), Torch()
    for step in range(1, 41):
        # b is reached from step 31 on, c in some steps only.
        gradients = (np.sin(step), 1.0 if step > 30 else None, step * 0.1 if step % 3 else None)
        ours.push(*gradients)
        theirs.push(*gradients)
        assert ours.values == pytest.approx(theirs.values, rel=1e-5, abs=1e-6), step
        if step == 35:
            folder = tmp_path / "saved"
            ours.save(folder)
            ours = Server("adam", ADAM, source=reader.CheckpointReader(folder))
    assert 1.0 - ours.values[1] == pytest.approx(1.0, rel=1e-3)  # ten steps of 0.1


def test_a_checkpoint_with_one_step_for_all_is_restored(tmp_path: Path) -> None:
    whole = Server("adam", ADAM)
    for _ in range(5):
        whole.push(1.0, 2.0, 3.0)
    whole.save(tmp_path / "saved")
    path = tmp_path / "saved" / "shard-0-of-1.dense.safetensors"
    tensors = {n: t for n, t in tensor_files.read(path).items() if not n.endswith("@step")}
    assert len(tensors) == 9
    commit(path.parent, {path.name: tensor_files.write(path, tensors, {"step": "5"})})
    part = Server("adam", ADAM, source=reader.CheckpointReader(path.parent))
    for server in (whole, part):
        server.push(None, 0.5, 0.5)
    assert part.values == whole.values


@pytest.mark.parametrize("stale", [1.0, np.inf])
def test_what_a_push_did_not_reach_counts_as_zero_in_the_mean(stale: float) -> None:
    server = Server("sgd", {"lr": 1.0}, quorum=2)
    server.push(1.0, 3.0, None, stale=stale)
    server.push(3.0, None, None, stale=stale)
    assert server.values == [-1.0, -0.5, 1.0]


def test_a_window_without_a_finite_loss_moves_nothing_that_others_did_not_reach() -> None:
    server = Server("sgd", {"lr": 1.0, "weight_decay": 0.5}, quorum=3)
    server.push()
    server.push(3.0, None, None)
    server.push()
    assert server.values == [-0.5, 1.0, 1.0]
    for _ in range(3):
        server.push()
    assert server.values == [-0.5, 1.0, 1.0]


def test_a_window_without_a_finite_loss_does_not_shrink_buffers() -> None:
    server = Server("sgd", {"lr": 1.0}, quorum=3, groups=(-2, 0, -2))
    server.push(3.0, 6.0, 8.0)
    server.push()
    server.push(5.0, 6.0, 8.0)
    assert server.values == pytest.approx([4.0, -3.0, 8.0])
