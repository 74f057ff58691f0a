"""Lookups whose rows and gradients are on a device: the same numbers as in the host's memory.

The steps on a device are the same on a CPU, which is tested everywhere; what is special to a GPU
(pinned memory, a stream of copies) is tested where there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torch_edl
from torch_edl.nn import rows
from torch_edl.nn.device_rows import DeviceRows, copies_of
from torch_edl.nn.rows import DeviceBlock, LookupOnDevice

GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
)
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
RNG = np.random.default_rng(4)


@DEVICES
def test_rows_go_up_and_their_gradients_come_down(device: str) -> None:
    values = RNG.standard_normal((500, 16), np.float32)
    inverse = RNG.integers(0, 500, 3000)
    there = DeviceRows(values, torch.device(device))
    wanted = values[inverse]
    values[:] = 0  # the network's memory is used again
    out, index = there.look_up(inverse)
    assert out.device.type == device
    np.testing.assert_array_equal(out.cpu().numpy(), wanted)
    assert there.take_gradient() is None
    sums = np.zeros((500, 16), np.float64)
    for _ in range(3):
        gradient = RNG.standard_normal((3000, 16), np.float32)
        np.add.at(sums, inverse, gradient)
        there.add(index, torch.from_numpy(gradient).to(device))
        there.start_down()
    found = there.take_gradient()
    assert found is not None
    np.testing.assert_allclose(found, sums, rtol=1e-4, atol=1e-4)
    assert there.take_gradient() is None
    there.add(index, torch.ones(3000, 16, device=device))
    there.drop_gradient()
    assert there.take_gradient() is None


@DEVICES
def test_a_block_sums_what_comes_from_everywhere(device: str) -> None:
    told: list[DeviceBlock] = []
    block = DeviceBlock(np.zeros((4, 2), np.float32), told.append)
    weight = torch.empty(0, 2, requires_grad=True, device=device)
    apply: Any = LookupOnDevice.apply
    for _ in range(2):
        out = apply(weight, block, np.array([0, 2, 2]), torch.device(device))
        (out.sum() * 3).backward()
    assert told == [block]
    block.add(np.array([3]), np.ones((1, 2), np.float32))
    assert block.grads is not None
    assert block.grads.tolist() == [[6, 6], [0, 0], [12, 12], [1, 1]]
    assert block.grads.tolist() == [[6, 6], [0, 0], [12, 12], [1, 1]]  # once, however often asked
    block.drop_gradient()
    assert block.grads is None
    assert weight.grad is not None
    assert weight.grad.shape == (0, 2)


@DEVICES
@pytest.mark.parametrize("mode", ["sum", "mean", "sqrtn"])
def test_a_bag_on_a_device_trains_as_in_the_hosts_memory(
    monkeypatch: pytest.MonkeyPatch, device: str, mode: str
) -> None:
    ids = torch.from_numpy(RNG.integers(-20, 20, (6, 30, 5)))
    factors = torch.from_numpy(RNG.standard_normal((6, 30, 8)).astype(np.float32))

    def trained(where: str) -> np.ndarray:
        torch.manual_seed(3)
        bag = torch_edl.nn.EmbeddingBag(None, 8, mode, padding_idx=7, name="bag").to(where)
        optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.1)
        for part, factor in zip(ids, factors, strict=True):
            optimizer.zero_grad()
            out = bag(part.to(where))
            assert out.device.type == where
            (out * factor.to(where)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            return np.asarray(bag.eval()(torch.arange(-20, 20).reshape(-1, 1)).numpy())

    here = trained("cpu")
    with monkeypatch.context() as changed:
        changed.setattr(rows, "_Lookup", LookupOnDevice)
        there = trained(device)
    np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_copies_to_a_gpu_wait_for_nothing_else() -> None:
    """A copy comes down as soon as its own tensor is there, though the GPU is busy with others."""
    copies = copies_of(torch.device("cuda"))

    def there_and_back() -> list[list[float]]:
        values = copies.up(np.ones((10, 3), np.float32))()
        return copies.down(values * 2)().tolist()

    there_and_back()  # memory that is pinned for the first time waits for the whole GPU
    side = torch.cuda.Stream()
    busy = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(50):
            busy = busy @ busy * 1e-3
    assert there_and_back() == [[2.0] * 3] * 10
    assert not side.query()
