"""Gradients of a ring against the plain sum over shares, in real processes over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.engine.ring.rings import Member, run
from torch_edl.engine.ring.replicated import Phase
from torch_edl.errors import UsageError
from torch_edl.pytorch.ring import buckets
from torch_edl.pytorch.ring.process_group import ProcessGroup
from torch_edl.pytorch.ring.reducer import Reducer

WORLD = 3


class Branches(nn.Module):
    """``used`` says which branches a forward takes; the last is never taken."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
        self.frozen = nn.Linear(4, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor, used: tuple[int, ...] = (0, 1)) -> torch.Tensor:
        return self.frozen(x) + sum(self.branches[n](x) for n in used)


class Words(nn.Module):
    """A sparse embedding, and its weight a second time as the output."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6, sparse=not tied)
        self.out = nn.Linear(6, 50)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table((x.abs().sum(1) * 7).long() % 50))


class Mixed(nn.Module):
    """Parameters of three types."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 5, dtype=torch.float64)
        self.b = nn.Linear(5, 5, dtype=torch.bfloat16)
        self.c = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x.double()).bfloat16()).float())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 3),
    "branches": Branches,
    "sparse": lambda: Words(tied=False),
    "tied": lambda: Words(tied=True),
    "mixed": Mixed,
    "float64": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double(),
    "many buckets": lambda: nn.Sequential(
        nn.Linear(4, 64), *(nn.Linear(64, 64) for _ in range(8)), nn.Linear(64, 2)
    ),
}


def inputs(model: nn.Module, rank: int, number: int, records: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    kind = next(model.parameters()).dtype
    return torch.randn(records, 4, generator=generator).to(
        torch.float64 if kind is torch.float64 else torch.float32
    )


def loss_of(model: nn.Module, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return model(x, **options).float().pow(2).mean()


def expected(model: nn.Module, parts: list[tuple[float, torch.Tensor]]) -> list[Any]:
    """The sum over all minibatches of share * gradient, as plain torch gives it."""
    sums: dict[str, torch.Tensor] = {}
    for share, x in parts:
        model.zero_grad()
        loss_of(model, x).backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                grad = p.grad.to_dense() if p.grad.is_sparse else p.grad
                sums[name] = sums.get(name, torch.zeros_like(p)) + share * grad
    model.zero_grad()
    return [sums.get(name) for name, p in model.named_parameters() if p.requires_grad]


def close(model: nn.Module, wanted: list[Any]) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, w in zip(trained, wanted, strict=True):
        assert (p.grad is None) == (w is None)
        if w is not None:
            rough = p.dtype is torch.bfloat16  # each sum of it is rounded to 8 bits
            torch.testing.assert_close(
                p.grad, w, atol=1e-3 if rough else 1e-6, rtol=2e-2 if rough else 1e-5
            )


def ring(member: Member, ring: int = 1) -> ProcessGroup:
    formed = member.next(0, -1)
    cpu = torch.device("cpu")
    return ProcessGroup(
        formed.store,
        ring,
        member.rank_in(formed),
        len(formed.workers),
        host=member.host,
        device=cpu,
    )


# ---- equality ----


def equal(member: Member, name: str, bucket_bytes: int) -> None:
    buckets.FIRST_BUCKET_BYTES = buckets.BUCKET_BYTES = bucket_bytes
    torch.manual_seed(1)
    model = MODELS[name]()
    group = ring(member)
    # Unequal minibatches: 1, 2, 3 records ... and two of them in the second update.
    sizes = [rank + 1 for rank in range(group.size)]
    wanted = []
    for counts in (1, 2):
        total = counts * sum(sizes)
        wanted.append(
            expected(
                model,
                [
                    (size / total, inputs(model, rank, number, size))
                    for rank, size in enumerate(sizes)
                    for number in range(counts)
                ],
            )
        )
    reducer = Reducer(model)
    reducer.use(group)
    for keep, counts in ((False, 1), (True, 2), (False, 1)):
        reducer.begin_update()
        share = sizes[group.rank] / (counts * sum(sizes))
        for number in range(counts):
            reducer.begin_minibatch(share, last=number == counts - 1)
            model.zero_grad(set_to_none=not keep)
            loss_of(model, inputs(model, group.rank, number, sizes[group.rank])).backward()
        assert reducer.phase is Phase.REDUCED
        assert reducer.covered == pytest.approx(1.0)
        close(model, wanted[counts - 1])
    if name == "many buckets":
        assert len(reducer._buckets) > 3


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_plain_torch(name: str) -> None:
    run(equal, name, 20_000, world=WORLD)


# ---- who has which gradient ----


def unused(member: Member) -> None:
    torch.manual_seed(1)
    model = Branches()
    group = ring(member)
    reducer = Reducer(model)
    reducer.use(group)
    reducer.begin_minibatch(0.5)
    x = inputs(model, 0, 0, 2)
    loss_of(model, x, used=(group.rank,)).backward()
    assert all(p.grad is not None for n in (0, 1) for p in model.branches[n].parameters())
    assert all(p.grad is None for p in model.branches[2].parameters())
    assert all(p.grad is None for p in model.frozen.parameters())
    mine = [p.grad.clone() for p in model.branches[0].parameters()]
    model.zero_grad()
    reducer.end_update()
    loss_of(model, x, used=(0,)).backward()
    for got, p in zip(mine, model.branches[0].parameters(), strict=True):
        torch.testing.assert_close(got, 0.5 * p.grad)


def test_a_gradient_is_none_where_no_member_has_one() -> None:
    run(unused, world=2)


def left_out(member: Member) -> None:
    """Rank 1 gathers one minibatch, then has no backward for the last one."""
    model = Branches()
    group = ring(member)
    reducer = Reducer(model)
    reducer.use(group)
    x = inputs(model, 0, 0, 2)
    reducer.begin_minibatch(0.25, last=False)
    loss_of(model, x, used=(group.rank,)).backward()
    if group.rank == 0:
        reducer.begin_minibatch(0.25)
        loss_of(model, x, used=(0,)).backward()
    else:
        reducer.reduce_nothing()
    assert reducer.covered == 0.75
    assert all(p.grad is not None for n in (0, 1) for p in model.branches[n].parameters())
    assert all(p.grad is None for p in model.branches[2].parameters())


def test_what_was_gathered_counts_where_the_last_backward_is_left_out() -> None:
    run(left_out, world=2)


def idle(member: Member) -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 3)
    group = ring(member)
    wanted = expected(model, [(1.0, inputs(model, 0, 0, 2))])
    reducer = Reducer(model)
    reducer.use(group)
    reducer.begin_minibatch(1.0 if group.rank == 0 else 0.0)
    x = inputs(model, 0, 0, 2)
    if group.rank:
        x[0, 0] = float("nan") if group.rank == 1 else float("inf")
    loss_of(model, x).backward()
    close(model, wanted)


def test_a_member_without_records_adds_nothing_though_its_gradient_is_not_finite() -> None:
    run(idle, world=WORLD)


# ---- how scripts call backward ----


def twice(member: Member) -> None:
    torch.manual_seed(1)
    model = MODELS["branches"]()
    group = ring(member)
    xs = [[inputs(model, rank, n, 2) for n in (0, 1)] for rank in range(group.size)]
    wanted = expected(model, [(1 / group.size, x) for pair in xs for x in pair])
    reducer = Reducer(model)
    reducer.use(group)
    for _ in range(2):
        reducer.begin_update()
        model.zero_grad()
        reducer.begin_minibatch(1 / group.size)
        for x in xs[group.rank]:
            loss_of(model, x).backward()
        close(model, wanted)
    # Who never calls zero_grad gets the sum of all, as with one process.
    reducer.begin_update()
    reducer.begin_minibatch(1 / group.size)
    for x in xs[group.rank]:
        loss_of(model, x).backward()
    close(model, [None if w is None else 2 * w for w in wanted])
    # Gathered and called twice: what came first cannot be told from what came now.
    reducer.begin_update()
    model.zero_grad()
    reducer.begin_minibatch(0.5 / group.size, last=False)
    loss_of(model, xs[0][0]).backward()
    reducer.begin_minibatch(0.5 / group.size)
    loss_of(model, xs[0][0]).backward()
    with pytest.raises(UsageError, match="add the losses up"):
        loss_of(model, xs[0][0]).backward()


def test_two_backwards_in_one_update_are_the_sum_of_both() -> None:
    run(twice, world=2)


def alone(model: nn.Module, shares: list[float]) -> Reducer:
    reducer = Reducer(model)
    reducer.use(None)
    for number, share in enumerate(shares):
        model.zero_grad()
        reducer.begin_minibatch(share, last=number == len(shares) - 1)
        loss_of(model, inputs(model, 0, number, 2 + number)).backward()
    return reducer


@pytest.mark.parametrize("name", MODELS)
def test_one_process_gathers_as_a_ring_does(name: str) -> None:
    torch.manual_seed(1)
    model = MODELS[name]()
    shares = [0.5, 0.2, 0.3]
    wanted = expected(model, [(s, inputs(model, 0, n, 2 + n)) for n, s in enumerate(shares)])
    assert alone(model, shares).phase is Phase.REDUCED
    close(model, wanted)


def test_one_process_weighs_the_last_minibatch_though_none_was_gathered() -> None:
    model = nn.Linear(4, 3)
    wanted = expected(model, [(0.25, inputs(model, 0, 0, 2))])
    reducer = alone(model, [0.25])
    close(model, wanted)
    # Nor is the gradient of the update before there still when a script leaves a batch out.
    reducer.begin_update()
    reducer.begin_minibatch(0.25)
    reducer.reduce_nothing()
    assert reducer.phase is Phase.REDUCED
    assert model.weight.grad is None


def test_one_process_refuses_a_second_backward_for_what_it_gathered() -> None:
    model = nn.Linear(4, 3)
    reducer = alone(model, [0.5, 0.5])
    with pytest.raises(UsageError, match="add the losses up"):
        loss_of(model, inputs(model, 0, 0, 2)).backward()
    assert reducer.phase is Phase.REDUCED


def test_outside_of_an_update_gradients_are_left_alone() -> None:
    model = nn.Linear(4, 3)
    x = inputs(model, 0, 0, 2)
    loss_of(model, x).backward()
    wanted = model.weight.grad.clone()
    model.zero_grad()
    reducer = Reducer(model)
    loss_of(model, x).backward()
    assert torch.equal(model.weight.grad, wanted)
    reducer.begin_minibatch(0.5)
    reducer.end_update()
    loss_of(model, x).backward()
    assert torch.equal(model.weight.grad, 2 * wanted)


def compiled(member: Member, backend: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    group = ring(member)
    xs = [inputs(model, rank, 0, 3) for rank in range(group.size)]
    wanted = expected(model, [(1 / group.size, x) for x in xs])
    fast = torch.compile(model, backend=backend)
    reducer = Reducer(fast)
    reducer.use(group)
    reducer.begin_minibatch(1 / group.size)
    F.mse_loss(fast(xs[group.rank]), torch.zeros(3, 2)).backward()
    close(model, wanted)


@pytest.mark.parametrize(
    ("backend", "world"), [("eager", 1), pytest.param("aot_eager", 2, marks=pytest.mark.slow)]
)
def test_a_compiled_model(backend: str, world: int) -> None:
    run(compiled, backend, world=world)
