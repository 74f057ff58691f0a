"""Updates of a ring that are rejected, or whose collectives fail."""

from __future__ import annotations

import torch
from torch import nn

from tests.unit.engine.ring.rings import Member, office, run
from tests.unit.pytorch.ring.test_reducer import MODELS, WORLD, inputs, loss_of, ring
from torch_edl.engine.ring.replicated import Phase
from torch_edl.pytorch.ring import buckets
from torch_edl.pytorch.ring.reducer import Reducer


def controls(member: Member) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    group = ring(member)
    heard: list[list[float]] = []

    def receive(sums: list[float]) -> str:
        heard.append(sums)
        return "no" if len(heard) == 2 else ""

    reducer = Reducer(model, 2, lambda: [1.0, float(group.rank)], receive)
    reducer.use(group)
    model[1].running_mean.fill_(group.rank)
    reducer.begin_minibatch(1 / group.size, leads=group.rank == 1)
    model.eval()
    loss_of(model, inputs(model, group.rank, 0, 4)).backward()
    assert heard == [[3.0, 3.0]]
    assert model[1].running_mean.tolist() == [1.0] * 4
    model[1].running_mean.fill_(group.rank)
    reducer.begin_update()
    reducer.begin_minibatch(1 / group.size, leads=group.rank == 1)
    loss_of(model, inputs(model, group.rank, 0, 4)).backward()
    assert reducer.phase is Phase.BROKEN
    assert reducer.failure == "no"
    assert all(p.grad is not None for p in model.parameters()), "to look at"
    reducer.end_update()
    assert all(p.grad is None for p in model.parameters())
    assert model[1].running_mean.tolist() == [group.rank] * 4


def test_control_numbers_travel_along_and_can_reject_the_update() -> None:
    run(controls, world=WORLD)


def broken(member: Member) -> None:
    model = MODELS["many buckets"]()
    buckets.FIRST_BUCKET_BYTES = buckets.BUCKET_BYTES = 20_000
    group = ring(member)
    reducer = Reducer(model)
    reducer.use(group)
    reducer.begin_minibatch(1 / group.size)
    loss_of(model, inputs(model, group.rank, 0, 4)).backward()
    assert reducer.phase is Phase.REDUCED
    if group.rank == 2:
        member.tell("ok")
        member.hear()
    # The second of two backwards fails, in the middle of it or at the end.
    member.tell("reduced")
    member.hear()
    group.interrupt()
    loss_of(model, inputs(model, group.rank, 0, 4)).backward()
    assert reducer.phase is Phase.BROKEN
    reducer.end_update()
    assert all(p.grad is None for p in model.parameters())
    member.tell("ok")
    member.hear()


def test_a_failed_collective_leaves_a_flag_and_no_gradient() -> None:
    with office(WORLD) as one:
        started = [one.start(broken) for _ in range(WORLD)]
        words = [each.hear() for each in started]
        assert sorted(words) == ["ok", "reduced", "reduced"]
        for each, word in zip(started, words, strict=True):
            if word == "reduced":
                each.tell("continue")
                assert each.hear() == "ok"


def test_running_statistics_of_a_failed_update_are_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    reducer = Reducer(model)
    model(torch.randn(8, 4))
    before = [b.clone() for b in model.buffers()]
    reducer.begin_update()
    model(torch.randn(8, 4))
    assert not torch.equal(before[0], model[1].running_mean)
    reducer.undo_update()
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
