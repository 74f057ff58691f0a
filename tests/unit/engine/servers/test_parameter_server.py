"""Training over real servers equals a plain torch loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torch_edl
from torch_edl.argument_order import labels_first
from torch_edl.config import DataConfig, JobConfig, TrainConfig
from torch_edl.contract import Contract
from torch_edl.data.batch import Batch, Minibatch, Update
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.errors import NanLossError, UsageError, UserCodeError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import Lease
from torch_edl.ps_client.partition import PartitionedIds, TableIds
from torch_edl.trainer.step import ContractBody, Step
from torch_edl.wire import master_pb2 as pb

TOKEN = "strategy-test"
IDS = 50
BATCH = 8
TABLES = ("wide", "deep")
Make = Callable[..., torch.optim.Optimizer]


class Model(nn.Module):
    """Two tables, a batch norm's buffers, a frozen and an unused parameter."""

    def __init__(self, torch_rows: torch.Tensor | None = None) -> None:
        super().__init__()
        self.wide: nn.Module
        self.deep: nn.Module
        if torch_rows is None:
            self.wide = torch_edl.nn.Embedding(None, 1, initializer="zeros")
            self.deep = torch_edl.nn.Embedding(IDS, 4, initializer="normal")
        else:
            self.wide = nn.Embedding.from_pretrained(torch.zeros(IDS, 1), freeze=False)
            self.deep = nn.Embedding.from_pretrained(torch_rows, freeze=False)
        self.linear = nn.Linear(12, 6)
        self.out = nn.Linear(6, 1)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.deep(ids).flatten(1)
        return self.out(self.linear(rows).tanh()) + self.wide(ids).sum(1)


def mse(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return (labels - predictions).pow(2).mean()


def contract(model: nn.Module, optimizer: Make) -> Contract:
    return Contract(
        path="m.py",
        model=lambda: model,
        loss=labels_first(mse),
        optimizer=optimizer,
        feed=lambda *_: None,
        eval_metrics_fn=None,
        scheduler=None,
        callbacks=None,
        data_source=None,
        prediction_outputs_processor=None,
    )


class Trained:
    """An engine, and the body of a model file that goes through updates with it."""

    def __init__(
        self, model: nn.Module, make: Make, addresses: list[str], scheduler: object = None,
        **train: object,
    ) -> None:  # fmt: skip
        config = JobConfig(
            name="t",
            model_file="m.py",
            data=DataConfig(batch_size=BATCH),
            train=TrainConfig(**train),  # type: ignore[arg-type]
        )
        optimizer = make(model.parameters())
        made = scheduler(optimizer) if callable(scheduler) else None
        self.step = Step(contract(model, make), model, on_nan=config.train.on_nan, log_layers="")
        self.engine = ServersEngine(
            model, optimizer, made,
            config=config, token=TOKEN, status=WorkerStatus(), forward=self.step.forward,
        )  # fmt: skip
        self.engine.connect(pb.Cluster(incarnation=1, servers=addresses))
        self._body = ContractBody(self.step, self.engine, optimizer, made)

    def compute(self, update: Update) -> bool:
        for minibatch in update.minibatches:
            update.losses.append(self._body(self.engine.begin(update, minibatch)))
        return self.engine.commit(update)

    def train(self, steps: list[Batch], each: int = 1) -> None:
        lease = Lease(lease_id=1, task_id=0, start=0, end=len(steps) * BATCH)
        updates = [
            update(lease, steps[i : i + each], first=i * BATCH, last=(i + each) * BATCH)
            for i in range(0, len(steps), each)
        ]
        done = []
        self.engine.prefetch(updates[0])
        for index, one in enumerate(updates):
            if index + 1 < len(updates) and self.engine.depth:
                self.engine.prefetch(updates[index + 1])
            assert self.compute(one)
            done += self.engine.acknowledged()
        done += self.engine.acknowledged(wait=True)
        assert done == updates
        assert self.engine.committed(lease) == len(steps) * BATCH


def update(lease: Lease, batches: list[Batch], *, first: int = 0, last: int = BATCH) -> Update:
    minibatches = [Minibatch(n, first + n * BATCH, b.size, b) for n, b in enumerate(batches)]
    return Update(first, last, minibatches, len(batches), last - first, lease, incarnation=1)


def batches(count: int, *, every_id: bool) -> list[Batch]:
    """Batches of ids; with ``every_id`` each batch uses all of them, so lazy equals dense."""
    torch.manual_seed(1)
    made = []
    for _ in range(count):
        if every_id:
            ids = torch.cat([torch.randperm(IDS), torch.randint(0, IDS, (10,))]).view(-1, 3)
        else:
            ids = torch.randint(0, IDS, (BATCH, 3))
        made.append(Batch(ids, ids.float().mean(1, keepdim=True) / IDS, len(ids)))
    return made


def rows_of(made: Trained, table: str, dim: int) -> torch.Tensor:
    client = made.engine._servers
    ids = PartitionedIds.of(np.arange(IDS), client.servers)
    (rows,) = client.pull([TableIds(table, dim, ids)], dense=False, read_only=True).wait().rows
    return torch.from_numpy(rows[ids.inverse])


def compare(ours: Model, made: Trained, theirs: Model) -> None:
    with made.engine.evaluating():
        pass  # pulls what the servers have
    for name, parameter in theirs.named_parameters():
        if name not in ("wide.weight", "deep.weight"):
            torch.testing.assert_close(
                dict(ours.named_parameters())[name], parameter, rtol=1e-5, atol=1e-5
            )
    for table, dim in (("wide", 1), ("deep", 4)):
        wanted = theirs.get_parameter(f"{table}.weight").detach()
        torch.testing.assert_close(rows_of(made, table, dim), wanted, rtol=1e-5, atol=1e-5)


OPTIMIZERS: dict[str, tuple[Make, bool]] = {
    # name: how to make it, and whether a row without a gradient stays as it is in torch too
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), True),
    "sgd momentum": (
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
        False,
    ),
    "sgd nesterov": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True), False),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01), True),
    "adagrad decay": (
        lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.2),
        False,
    ),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01), False),
    "amsgrad": (lambda p: torch.optim.Adam(p, lr=0.002, amsgrad=True), False),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True), False),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.01), False),
    "rmsprop centered": (
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, weight_decay=0.01),
        False,
    ),
    "ftrl": (lambda p: torch_edl.optim.Ftrl(p, lr=0.1, l2=0.001), False),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_steps_equal_a_plain_loop(
    name: str, servers: int, start_servers: Callable[..., list[str]]
) -> None:
    make, sparse = OPTIMIZERS[name]
    torch.manual_seed(0)
    ours = Model()
    made = Trained(ours, make, start_servers(servers), staleness=0)
    theirs = Model(rows_of(made, "deep", 4))
    theirs.load_state_dict({n: p.detach().clone() for n, p in made.engine.state_dict().items()
                            if n.split(".")[0] not in TABLES}, strict=False)  # fmt: skip
    optimizer = make(theirs.parameters())
    steps = batches(200, every_id=not sparse)
    for batch in steps:
        optimizer.zero_grad()
        mse(batch.labels, theirs(batch.features)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    made.train(steps)
    compare(ours, made, theirs)


def test_local_steps_of_sgd_are_plain_sgd_for_dense_parameters(
    start_servers: Callable[..., list[str]],
) -> None:
    def make(params: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.01)  # type: ignore[arg-type]

    torch.manual_seed(0)
    ours = Model()
    made = Trained(ours, make, start_servers(2), staleness=0, local_steps=4)
    theirs = Model(rows_of(made, "deep", 4))
    theirs.load_state_dict({n: p.detach().clone() for n, p in made.engine.state_dict().items()
                            if n.split(".")[0] not in TABLES}, strict=False)  # fmt: skip
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
    staleness: int, start_servers: Callable[..., list[str]]
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


def test_the_users_scheduler_sets_the_rate(start_servers: Callable[..., list[str]]) -> None:
    def make(params: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1)  # type: ignore[arg-type]

    def decay(optimizer: torch.optim.Optimizer) -> object:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)

    torch.manual_seed(0)
    ours = Model()
    made = Trained(ours, make, start_servers(1), scheduler=decay, staleness=0)
    theirs = Model(rows_of(made, "deep", 4))
    theirs.load_state_dict({n: p.detach().clone() for n, p in made.engine.state_dict().items()
                            if n.split(".")[0] not in TABLES}, strict=False)  # fmt: skip
    optimizer = make(theirs.parameters())
    scheduler = decay(optimizer)
    steps = batches(20, every_id=False)
    for batch in steps:
        optimizer.zero_grad()
        mse(batch.labels, theirs(batch.features)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()  # type: ignore[attr-defined]
    made.train(steps)
    compare(ours, made, theirs)


def sgd(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite(start_servers: Callable[..., list[str]]) -> None:
    torch.manual_seed(0)
    model = Model()
    addresses = start_servers(1)
    bad = Batch(torch.zeros(BATCH, 3, dtype=torch.int64), torch.full((BATCH, 1), torch.inf), BATCH)
    lease = Lease(lease_id=1, task_id=0, end=BATCH)
    with pytest.raises(NanLossError, match="--on-nan skip"):
        Trained(model, sgd, addresses).compute(update(lease, [bad]))
    before = {n: p.clone() for n, p in model.named_parameters()}
    made = Trained(model, sgd, addresses, on_nan="skip")
    made.compute(update(lease, [bad]))
    (done,) = made.engine.acknowledged(wait=True)
    assert (done.count, done.not_finite) == (1, 1)
    assert made.engine.committed(lease) == BATCH
    with made.engine.evaluating():
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_errors_of_the_users_model_are_told_apart(start_servers: Callable[..., list[str]]) -> None:
    made = Trained(Model(), sgd, start_servers(1))
    lease = Lease(lease_id=1, task_id=0, end=BATCH)
    labels = torch.zeros(BATCH, 1)
    high = Batch(torch.full((BATCH, 3), IDS), labels, BATCH)
    with pytest.raises(UsageError, match=rf"deep: id {IDS} is outside \[0, {IDS}\)"):
        made.compute(update(lease, [high]))
    wrong = Batch(torch.zeros(BATCH, 2, dtype=torch.int64), labels, BATCH)
    with pytest.raises(UserCodeError, match="the model raised RuntimeError"):
        made.compute(update(lease, [wrong]))


def test_another_model_is_refused(start_servers: Callable[..., list[str]]) -> None:
    addresses = start_servers(2)
    Trained(Model(), sgd, addresses)
    other = Model()
    other.linear = nn.Linear(12, 7)
    other.out = nn.Linear(7, 1)
    with pytest.raises(UsageError, match="linear"):
        Trained(other, sgd, addresses)


def test_the_path_of_a_module_names_its_table(tmp_path: Path) -> None:
    from torch_edl.nn.model_tables import bind_tables

    shared = nn.ModuleDict({"a": torch_edl.nn.Embedding(None, 2, name="x"),
                            "b": nn.Sequential(torch_edl.nn.Embedding(None, 2)),
                            "c": torch_edl.nn.Embedding(None, 2, name="x")})  # fmt: skip
    assert [t.table for t in bind_tables(shared)] == ["x", "b.0", "x"]
    shared["d"] = torch_edl.nn.Embedding(None, 3, name="x")
    with pytest.raises(UsageError, match="share the table 'x'"):
        bind_tables(shared)


def test_views_of_one_tensor_are_told_apart(start_servers: Callable[..., list[str]]) -> None:
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
    lease = Lease(lease_id=1, task_id=0, end=2)
    made.compute(update(lease, [Batch(ids, ids, 2)], last=2))
    made.engine.acknowledged(wait=True)
    assert rows_of(made, "a", 1)[:6].flatten().tolist() == [0, -1, -2, -3, -4, -5]
    assert rows_of(made, "b", 1)[:6].flatten().tolist() == [0, -2, -4, -1, -3, -5]


def test_ids_may_be_changed_in_place(start_servers: Callable[..., list[str]]) -> None:
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
    made.engine._planned_rows([Batch(torch.arange(2), None, 2)])
    model.kind = 1
    with pytest.raises(UsageError, match=r"did not change the first one.*clone\(\)"):
        made.engine._planned_rows([Batch(torch.arange(2), None, 2)])


def test_each_worker_may_draw_the_weights_that_are_swapped(
    start_servers: Callable[..., list[str]],
) -> None:
    from torch_edl.nn.model_tables import swap_large

    class Swapped(nn.Module):
        def __init__(self, dim: int = 2) -> None:
            super().__init__()
            self.rows = nn.Embedding(IDS, dim)
            swap_large(self, 10)

    addresses = start_servers(2)
    torch.manual_seed(0)
    first = Trained(Swapped(), sgd, addresses)
    wanted = rows_of(first, "rows", 2)
    second = Trained(Swapped(), sgd, addresses)
    assert torch.equal(rows_of(second, "rows", 2), wanted)
    with pytest.raises(UsageError, match="table rows: not the first worker's; that one is dim 2"):
        Trained(Swapped(dim=3), sgd, addresses)
