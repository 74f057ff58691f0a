"""A ring against DistributedDataParallel, and against itself when its size changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from tests.unit.engine.ring.rings import Member, office
from tests.waiting import wait_for
from torch_edl.data.passes import Pass
from torch_edl.pytorch.batches import Order

STEPS = 100
BATCH = 4

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.005),
}


def network(*, norm: bool) -> nn.Module:
    torch.manual_seed(7)
    layers: list[nn.Module] = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)]
    if norm:
        layers.insert(1, nn.BatchNorm1d(16))
    return nn.Sequential(*layers)


def dataset(records: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(records, 8, generator=generator)
    return TensorDataset(x, (x[:, :4] * 3).argmax(1))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def compared(member: Member, optimizer_name: str, norm: bool) -> None:
    """Trains with the ring, then with DistributedDataParallel on the same slices."""
    job = member.job()
    model = network(norm=norm)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    job.prepare(model, optimizer, scheduler)
    losses: list[float] = []
    records = 64 * 4
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "epochs": 100}
    data = dataset(records)
    for x, y in job.loader(data, **options):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if job.step == STEPS:
            break
    ring = member.seats[-1]
    rank, world = member.rank_in(ring), len(ring.workers)
    assert job.step == STEPS
    store = dist.TCPStore(
        "127.0.0.1", int(ring.store.rpartition(":")[2]), is_master=False,
        timeout=timedelta(seconds=20), wait_for_workers=False,
    )  # fmt: skip
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("ddp", store), rank=rank, world_size=world
    )
    plain = network(norm=norm)
    theirs = DistributedDataParallel(plain)
    other = OPTIMIZERS[optimizer_name](plain.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(other, STEPS)
    whole = Pass(records=records, batch_size=BATCH, shuffle=True, epochs=100)
    order = Order(whole, 0)
    reference = []
    for step in range(STEPS):
        (span,) = whole.part(step * BATCH * world, rank, world).spans
        x, y = data[order.indices(span)]
        other.zero_grad()
        loss = loss_of(theirs, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        other.step()
        schedule.step()
        reference.append(loss.item())
    gaps = [
        (a - b).abs().max().item()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    ]
    # DistributedDataParallel gives rank 0's statistics to the others at the next forward.
    norms = [b for b in plain.buffers() if b.is_floating_point()]
    for buffer in norms:
        dist.broadcast(buffer, 0)
    mine = [b for b in model.buffers() if b.is_floating_point()]
    drift = [(a - b).abs().max().item() for a, b in zip(mine, norms, strict=True)]
    dist.destroy_process_group()
    member.tell((max(gaps), max(drift, default=0.0), losses, reference))
    member.hear()


@pytest.mark.parametrize(
    ("world", "optimizer", "norm"),
    [
        (2, "adam", True),
        pytest.param(2, "sgd", False, marks=pytest.mark.slow),
        pytest.param(4, "adam", False, marks=pytest.mark.slow),
    ],
)
def test_a_hundred_steps_are_those_of_distributed_data_parallel(
    world: int, optimizer: str, norm: bool
) -> None:
    with office(world) as one:
        for each in [one.start(compared, optimizer, norm) for _ in range(world)]:
            gap, drift, losses, reference = each.hear()
            assert gap <= 1e-6
            assert drift <= 1e-5
            assert losses == pytest.approx(reference, abs=1e-5)
            assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def changing(member: Member, stops: tuple[int, ...]) -> None:
    """Before some steps it waits, so that the test can change the ring."""
    job = member.job(check_every=1)
    model = network(norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job.prepare(model, optimizer)
    losses: list[tuple[int, int, float]] = []
    for x, y in job.loader(
        dataset(240), batch_size=4, global_batch_size=24, shuffle=True, epochs=4
    ):
        if job.step in stops and (not losses or losses[-1][0] < job.step):
            member.tell(job.step)
            member.hear()
        losses.append((job.step, len(y), 0.0))
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses[-1] = (*losses[-1][:2], loss.item())
    worlds = [len(ring.workers) for ring in member.seats]
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    member.tell((worlds, losses, flat))
    job.close()


def curve(ends: list[Any]) -> list[float]:
    """The mean loss of each global batch: of those parts that nobody repeated."""
    sums: dict[int, dict[float, int]] = {}
    for _, losses, _ in ends:
        for step, records, loss in losses:
            sums.setdefault(step, {})[loss] = records
    return [
        sum(loss * n for loss, n in parts.items()) / sum(parts.values())
        for _, parts in sorted(sums.items())
    ]


def test_with_a_fixed_global_batch_the_world_does_not_matter() -> None:
    """2 members, then 4, then 3, against 2 all the time."""
    with office(2) as one:
        steady = [each.hear() for each in [one.start(changing, ()) for _ in range(2)]]
    with office(2) as one:
        members = [one.start(changing, (8, 20)) for _ in range(2)]
        assert [each.hear() for each in members] == [8, 8]
        more = [one.start(changing, (20,)) for _ in range(2)]
        wait_for(lambda: len(one.ring._asked) == 2)
        for each in members:
            each.tell("on")
        members += more
        assert [each.hear() for each in members] == [20] * 4
        lost = members.pop(2)
        lost.kill()
        for each in members:
            each.tell("on")
        ends = [each.hear() for each in members]
        assert [end[0] for end in ends] == [[2, 4, 3], [2, 4, 3], [4, 3]]
    for end in ends:
        gap = max(abs(a - b) for a, b in zip(end[2], steady[0][2], strict=True))
        assert gap <= 1e-4
    one_curve, other_curve = curve(steady), curve(ends)
    assert len(one_curve) == 40
    assert one_curve[-1] < one_curve[0]
    assert all(math.isfinite(loss) for loss in other_curve)
    # Parts of the one that was killed are in no list; where all are there the means are the same.
    assert other_curve[:8] == pytest.approx(one_curve[:8], abs=1e-4)
    assert other_curve[21:] == pytest.approx(one_curve[21:], abs=1e-4)
