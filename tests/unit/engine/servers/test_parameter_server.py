"""Training over real servers equals a plain torch loop."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_edl
from tests.unit.engine.servers.trained import (
    BATCH,
    IDS,
    TABLES,
    Make,
    Model,
    Trained,
    batches,
    compare,
    mse,
    rows_of,
    sgd,
    update,
)
from torch_edl.errors import NanLossError, UsageError, UserCodeError
from torch_edl.interfaces import Batch
from torch_edl.master_client.leases import HeldLease
from torch_edl.nn.model_tables import swap_large
from torch_edl.pytorch.servers.served import ServedTorchModel
from torch_edl.wire import master_pb2 as pb

# Of momentum and moments, of learning rates for each row, and of our own. Each kernel is compared
# with torch in tests/contract/test_optimizers.py.
OPTIMIZERS: dict[str, tuple[int, Make]] = {
    "momentum": (
        1,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    ),
    "adam": (2, lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01)),
    "adagrad": (
        2,
        lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.2),
    ),
    "ftrl": (1, lambda p: torch_edl.optim.Ftrl(p, lr=0.1, l2=0.001)),
}


def twin(made: Trained) -> Model:
    """The same model with the rows of the servers in embeddings of torch."""
    model = Model(rows_of(made, "deep", 4))
    dense = {n: p.detach().clone() for n, p in made.state_dict().items()}
    model.load_state_dict(
        {n: p for n, p in dense.items() if n.split(".")[0] not in TABLES}, strict=False
    )
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_steps_equal_a_plain_loop(
    name: str, start_servers: Callable[..., list[pb.Server]]
) -> None:
    servers, make = OPTIMIZERS[name]
    torch.manual_seed(0)
    ours = Model()
    made = Trained(ours, make, start_servers(servers))
    theirs = twin(made)
    optimizer = make(theirs.parameters())
    steps = batches(200, every_id=True)  # torch also moves rows without a gradient
    for batch in steps:
        optimizer.zero_grad()
        mse(batch.labels, theirs(batch.features)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    made.train(steps)
    compare(ours, made, theirs)


def test_local_steps_of_sgd_are_plain_sgd_for_dense_parameters(
    start_servers: Callable[..., list[pb.Server]],
) -> None:
    make = functools.partial(torch.optim.SGD, lr=0.01)
    torch.manual_seed(0)
    ours = Model()
    made = Trained(ours, make, start_servers(2), staleness=0, local_steps=4)
    theirs = twin(made)
    dense = make([p for n, p in theirs.named_parameters() if n.split(".")[0] not in TABLES])
    rows = make([theirs.get_parameter(f"{t}.weight") for t in TABLES])
    steps = batches(40, every_id=False)
    for index, batch in enumerate(steps):
        mse(batch.labels, theirs(batch.features)).backward()  # type: ignore[no-untyped-call]
        dense.step()
        dense.zero_grad()
        if index % 4 == 3:  # rows move with the push only
            rows.step()
            rows.zero_grad()
    made.train(steps, 4)
    compare(ours, made, theirs)


@pytest.mark.parametrize("staleness", [1, 3])
def test_overlap_applies_every_gradient_once(
    staleness: int, start_servers: Callable[..., list[pb.Server]]
) -> None:
    """A loss that is linear in the parameters has the same gradients however stale they are."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Parameter(torch.zeros(1))
            self.ids = torch_edl.nn.Embedding(None, 1, initializer="zeros")

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return -(self.ids(ids).sum() + self.count * len(ids))

    model = Sum()
    made = Trained(model, lambda p: torch.optim.SGD(p, lr=1.0), start_servers(2),
                    staleness=staleness)  # fmt: skip
    made.step._loss = lambda labels, predictions: predictions
    steps = batches(60, every_id=False)
    made.train(steps)
    with made.engine.evaluating():
        assert model.count.item() == 60 * BATCH
    counted = torch.bincount(torch.cat([b.features.reshape(-1) for b in steps]), minlength=IDS)
    assert rows_of(made, "ids", 1).squeeze(1).tolist() == counted.tolist()


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_gradient_is_no_older_than_the_staleness(
    staleness: int, start_servers: Callable[..., list[pb.Server]]
) -> None:
    """The same as a plain loop whose gradients are taken as many updates before: rows, dense
    parameters and all."""

    make = functools.partial(torch.optim.SGD, lr=0.3)

    class Plain(nn.Module):
        def __init__(self, rows: nn.Module) -> None:
            super().__init__()
            self.rows, self.out = rows, nn.Linear(3 * 4, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.rows(ids).flatten(1))

    torch.manual_seed(0)
    ours = Plain(torch_edl.nn.Embedding(IDS, 4, initializer="normal"))
    made = Trained(ours, make, start_servers(2), staleness=staleness)
    theirs = Plain(nn.Embedding.from_pretrained(rows_of(made, "rows", 4), freeze=False))
    theirs.out.load_state_dict(ours.out.state_dict())
    optimizer, steps = make(theirs.parameters()), batches(30, every_id=False)
    past = [copy.deepcopy(theirs.state_dict())]
    losses = []
    for batch in steps:
        now = copy.deepcopy(theirs.state_dict())
        theirs.load_state_dict(past[0])
        optimizer.zero_grad()
        loss = mse(batch.labels, theirs(batch.features))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        theirs.load_state_dict(now)
        optimizer.step()
        past = [*past, copy.deepcopy(theirs.state_dict())][-1 - staleness :]
    updates = made.train_in_step(steps)
    assert [update.loss for update in updates] == pytest.approx(losses, rel=1e-4)


def test_the_users_scheduler_sets_the_rate(start_servers: Callable[..., list[pb.Server]]) -> None:
    def decay(optimizer: torch.optim.Optimizer) -> object:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)

    torch.manual_seed(0)
    ours = Model()
    made = Trained(ours, sgd, start_servers(1), scheduler=decay, staleness=0)
    theirs = twin(made)
    optimizer = sgd(theirs.parameters())
    scheduler = decay(optimizer)
    steps = batches(20, every_id=False)
    for batch in steps:
        optimizer.zero_grad()
        mse(batch.labels, theirs(batch.features)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()  # type: ignore[attr-defined]
    made.train(steps)
    compare(ours, made, theirs)


def test_a_loss_that_is_not_finite(start_servers: Callable[..., list[pb.Server]]) -> None:
    torch.manual_seed(0)
    model = Model()
    servers = start_servers(1)
    bad = Batch(torch.zeros(BATCH, 3, dtype=torch.int64), torch.full((BATCH, 1), torch.inf), BATCH)
    lease = HeldLease(lease_id=1, task_id=0, end=BATCH)
    with pytest.raises(NanLossError, match="--on-nan skip"):
        Trained(model, sgd, servers).compute(update(lease, [bad]))
    before = {n: p.clone() for n, p in model.named_parameters()}
    made = Trained(model, sgd, servers, on_nan="skip")
    made.compute(update(lease, [bad]))
    (done,) = made.engine.acknowledged(wait=True)
    assert (done.count, done.not_finite) == (1, 1)
    assert made.engine.committed(lease) == BATCH
    with made.engine.evaluating():
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_errors_of_the_users_model_are_told_apart(
    start_servers: Callable[..., list[pb.Server]],
) -> None:
    made = Trained(Model(), sgd, start_servers(1))
    lease = HeldLease(lease_id=1, task_id=0, end=BATCH)
    labels = torch.zeros(BATCH, 1)
    high = Batch(torch.full((BATCH, 3), IDS), labels, BATCH)
    with pytest.raises(UsageError, match=rf"deep: id {IDS} is outside \[0, {IDS}\)"):
        made.compute(update(lease, [high]))
    wrong = Batch(torch.zeros(BATCH, 2, dtype=torch.int64), labels, BATCH)
    with pytest.raises(UserCodeError, match="the model raised RuntimeError"):
        made.compute(update(lease, [wrong]))


def test_another_model_is_refused(start_servers: Callable[..., list[pb.Server]]) -> None:
    servers = start_servers(2)
    Trained(Model(), sgd, servers)
    other = Model()
    other.linear = nn.Linear(12, 7)
    other.out = nn.Linear(7, 1)
    with pytest.raises(UsageError, match="linear"):
        Trained(other, sgd, servers)


def test_views_of_one_tensor_are_told_apart(start_servers: Callable[..., list[pb.Server]]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch_edl.nn.Embedding(None, 1, initializer="zeros")
            self.b = torch_edl.nn.Embedding(None, 1, initializer="zeros")
            self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            weight = torch.arange(6.0)
            rows = self.a(ids).flatten() + self.b(ids.t()).flatten()
            return (rows * weight * self.scale).sum()

    made = Trained(Twice(), lambda p: torch.optim.SGD(p, lr=1.0), start_servers(1), staleness=0)
    made.step._loss = lambda labels, predictions: predictions
    ids = torch.arange(6).view(2, 3)
    lease = HeldLease(lease_id=1, task_id=0, end=2)
    made.compute(update(lease, [Batch(ids, ids, 2)], last=2))
    made.engine.acknowledged(wait=True)
    assert rows_of(made, "a", 1)[:6].flatten().tolist() == [0, -1, -2, -3, -4, -5]
    assert rows_of(made, "b", 1)[:6].flatten().tolist() == [0, -2, -4, -1, -3, -5]


def test_ids_may_be_changed_in_place(start_servers: Callable[..., list[pb.Server]]) -> None:
    class Shifted(nn.Module):
        """Looks its ids up, adds one to them in place, and looks them up again."""

        def __init__(self) -> None:
            super().__init__()
            self.a = torch_edl.nn.Embedding(None, 1, initializer="zeros")
            self.b = torch_edl.nn.Embedding(None, 1, initializer="zeros")
            self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
            self.kind = 1

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found = self.a(ids)
            if self.kind:
                ids += 10
            return ((found + self.b(ids)) * self.scale).sum()

    model = Shifted()
    made = Trained(model, lambda p: torch.optim.SGD(p, lr=1.0), start_servers(1), staleness=0)
    made.step._loss = lambda labels, predictions: -predictions
    made.train([Batch(torch.arange(k, k + 2), None, 2) for k in range(3)])
    counts = [1.0, 2.0, 2.0, 1.0]
    for table, first in (("a", 0), ("b", 10)):
        rows = rows_of(made, table, 1).flatten()
        assert rows[first : first + 4].tolist() == counts
        assert rows.sum() == 6

    model.kind = 0
    made = Trained(model, sgd, start_servers(1), staleness=0)
    made.served.rows.plan([torch.arange(2)])
    model.kind = 1
    with pytest.raises(UsageError, match=r"did not change the first one.*clone\(\)"):
        made.served.rows.plan([torch.arange(2)])


def test_a_planning_run_draws_no_random_numbers() -> None:
    """Nor does it count for the running statistics."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch_edl.nn.Embedding(None, 2)
            self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(2)
            self.second = torch_edl.nn.Embedding(None, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.norm(self.drop(self.first(ids))) + self.second(ids)

    model = Noisy()
    served = ServedTorchModel(model, sgd(model.parameters()), None, forward=model)
    before = torch.get_rng_state()
    assert len(served.rows.plan([torch.arange(4)]).tables) == 2
    assert torch.equal(torch.get_rng_state(), before)
    assert model.norm.num_batches_tracked == 0
    assert model.drop.training


def test_each_worker_may_draw_the_weights_that_are_swapped(
    start_servers: Callable[..., list[pb.Server]],
) -> None:
    class Swapped(nn.Module):
        def __init__(self, dim: int = 2) -> None:
            super().__init__()
            self.rows = nn.Embedding(IDS, dim)
            swap_large(self, 10)

    servers = start_servers(2)
    torch.manual_seed(0)
    first = Trained(Swapped(), sgd, servers)
    wanted = rows_of(first, "rows", 2)
    second = Trained(Swapped(), sgd, servers)
    assert torch.equal(rows_of(second, "rows", 2), wanted)
    with pytest.raises(UsageError, match="table rows: not the first worker's; that one is dim 2"):
        Trained(Swapped(dim=3), sgd, servers)
