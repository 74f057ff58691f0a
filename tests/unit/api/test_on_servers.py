"""A script's own loop on real parameter servers, with a real master."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import torch_edl
from tests.waiting import HANG_S
from torch_edl.api import opening
from torch_edl.checkpoint.layout import step_dir
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

IDS, STEPS, BATCH = 30, 50, 15
CLIP = 0.05
Make = Callable[[Any], torch.optim.Optimizer]


class Model(nn.Module):
    """An embedding and two layers with a buffer of their own."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = embedding
        # A bias before the norm would have a gradient of rounding errors only.
        self.hidden = nn.Linear(8, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        # Two lookups, so that an id has gradients of both.
        rows = torch.cat([self.rows(ids[:, 0]), self.rows(ids[:, 1])], 1)
        return self.out(self.norm(self.hidden(rows)).tanh())


def plain_embedding() -> nn.Embedding:
    embedding = nn.Embedding(IDS, 4)
    nn.init.constant_(embedding.weight, 0.1)
    return embedding


def data() -> TensorDataset:
    """Each batch has all ids, so that optimizers which move all rows equal those that do not."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.cat([torch.randperm(IDS, generator=generator).view(-1, 2) for _ in range(STEPS)])
    return TensorDataset(ids, ids.float().mean(1, keepdim=True) / IDS)


def loop(
    batches: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    *,
    clip: bool,
) -> list[float]:
    losses = []
    for ids, labels in batches:
        optimizer.zero_grad()
        loss = (model(ids) - labels).pow(2).mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


FAST = {("sgd", "unbounded"), ("adam", "swapped")}


@pytest.mark.parametrize(
    ("name", "table", "clip"),
    [
        pytest.param(name, table, clip, marks=[] if (name, table) in FAST else pytest.mark.slow)
        for name in OPTIMIZERS
        for table, clip in (("swapped", True), ("unbounded", False))
    ],
)
def test_50_steps_equal_a_plain_loop(
    start: Callable[..., Stub], name: str, table: str, clip: bool
) -> None:
    start(large_embedding=10, staleness=0)
    records = data()
    theirs = Model(plain_embedding())
    optimizer = OPTIMIZERS[name](theirs.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    loader = torch.utils.data.DataLoader(records, batch_size=BATCH)
    wanted = loop(loader, theirs, optimizer, scheduler, clip=clip)

    embedding: nn.Module = plain_embedding()
    if table == "unbounded":
        embedding = torch_edl.nn.Embedding(None, 4, initializer=("constant", {"value": 0.1}))
    ours = Model(embedding)
    optimizer = OPTIMIZERS[name](ours.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    job = torch_edl.init()
    given = job.prepare(ours, optimizer, scheduler)
    assert given == (ours, optimizer, scheduler)
    got = loop(job.loader(records, batch_size=BATCH), ours, optimizer, scheduler, clip=clip)

    assert isinstance(ours.rows, torch_edl.nn.Embedding)
    assert job.step == STEPS
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-5, atol=1e-5)
    state, wanted_state = job.state_dict(), theirs.state_dict()
    if table == "unbounded":
        assert torch.equal(state.pop("rows.ids"), torch.arange(IDS))
        state["rows.weight"] = state.pop("rows.vectors")
    assert state.keys() == wanted_state.keys()
    for part, value in wanted_state.items():
        torch.testing.assert_close(state[part], value, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        rows = ours.eval().rows(torch.arange(IDS))
    torch.testing.assert_close(rows, theirs.rows.weight.detach(), rtol=1e-5, atol=1e-5)
    job.close()


def one_worker(**options: Any) -> tuple[Any, Model, torch.optim.Optimizer]:
    model = Model(torch_edl.nn.Embedding(None, 4, initializer=("constant", {"value": 0.1})))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    job = torch_edl.init(**options)
    job.prepare(model, optimizer)
    return job, model, optimizer


def test_loops_over_a_loader_train_as_long_as_the_script_likes(
    start: Callable[..., Stub], tmp_path: Path
) -> None:
    """Each ends with the model of all its batches, and with a checkpoint that holds it."""
    folder = tmp_path / "kept"
    master = start(staleness=0, checkpoint_dir=str(folder))
    records = data()
    ids, labels = records.tensors
    job, model, optimizer = one_worker()
    loader = job.loader(records, batch_size=BATCH)
    losses = []

    def validate() -> float:
        with torch.no_grad():
            return float((model.eval()(ids) - labels).pow(2).mean())

    for number in range(1, 4):
        model.train()
        loop(loader, model, optimizer, Idle(), clip=False)
        losses.append(validate())
        status = master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
        assert (status.epochs, status.records_done) == (number, number * len(ids))
        assert status.checkpoint == str(step_dir(folder, number * STEPS))
    assert losses == sorted(losses, reverse=True)
    assert validate() == losses[-1]
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert sum(1 for _ in loader) == 2 * STEPS - 3
    job.close()


def test_rates_set_by_hand_are_those_of_the_servers(start: Callable[..., Stub]) -> None:
    """The rate at the step counts, not a later one; other values are the servers' own."""
    start(servers=1)
    job, model, optimizer = one_worker()
    before = model.out.bias.item()
    for number, _ in enumerate(job.loader(data(), batch_size=BATCH)):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 2.0 if number == 2 else 0.5
        (-model.out.bias.sum()).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 1000.0
    assert job.state_dict()["out.bias"].item() - before == pytest.approx(0.5 * (STEPS - 1) + 2)
    job.close()


def test_a_momentum_that_changes_is_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    model = Model(torch_edl.nn.Embedding(None, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    job = torch_edl.init()
    job.prepare(model, optimizer, scheduler)
    with pytest.raises(UsageError, match=r"Adam began with beta1 0.95 .*cycle_momentum=False"):
        loop(job.loader(data(), batch_size=BATCH), model, optimizer, scheduler, clip=False)
    job.close()


def test_the_trainer_class_goes_epoch_by_epoch(start: Callable[..., Stub]) -> None:
    master = start()
    model = Model(torch_edl.nn.Embedding(None, 4))
    seen: list[tuple[int, int]] = []

    class Callback:
        def on_epoch_end(self, epoch: int, figures: dict[str, float]) -> None:
            seen.append((epoch, trainer.job.step))

    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    trainer = torch_edl.ElasticTrainer(
        model, nn.MSELoss(), optimizer, clip_grad_norm=1.0, callbacks=[Callback()]
    )
    records = data()
    history = trainer.fit(records, batch_size=BATCH, epochs=3, eval_dataset=records, verbose=False)
    assert seen == [(1, STEPS), (2, 2 * STEPS), (3, 3 * STEPS)]
    losses = [figures["eval_loss"] for figures in history]
    assert losses == sorted(losses, reverse=True)
    assert trainer.evaluate(records, batch_size=50)["loss"] == pytest.approx(losses[-1], rel=1e-5)
    ids, labels = records.tensors
    predicted = trainer.predict(records, batch_size=50)
    assert float((predicted - labels).pow(2).mean()) == pytest.approx(losses[-1], rel=1e-5)
    status = master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    assert (status.strategy, status.epochs, status.records_done) == ("ps", 3, 3 * len(ids))
    (more,) = trainer.fit(records, batch_size=BATCH, eval_dataset=records, verbose=False)
    assert more["eval_loss"] != losses[-1]  # it was trained further
    status = master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    assert (status.epochs, status.records_done) == (4, 4 * len(ids))


def test_the_model_decides_where_it_is(start: Callable[..., Stub]) -> None:
    start(strategy="auto")
    job, _, _ = one_worker()
    assert job.on_servers
    job.close()
    start(strategy="auto")
    model = Model(plain_embedding())
    job = torch_edl.init()
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    assert not job.on_servers
    assert sum(1 for _ in job.loader(data(), batch_size=BATCH)) == STEPS


def test_a_batch_without_a_step_counts_and_changes_nothing(start: Callable[..., Stub]) -> None:
    master = start()
    job, model, optimizer = one_worker()
    before = {name: value.clone() for name, value in model.named_parameters()}
    for ids, labels in job.loader(data(), batch_size=BATCH):
        optimizer.zero_grad()
        (model(ids) - labels).pow(2).mean().backward()
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        assert torch.equal(model.eval().rows(torch.arange(IDS)), torch.full((IDS, 4), 0.1))
    status = master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    assert status.records_done == len(data())


def test_gathering_by_hand_is_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    job, model, optimizer = one_worker()

    def train() -> None:
        for number, (ids, labels) in enumerate(job.loader(data(), batch_size=BATCH)):
            (model(ids) - labels).pow(2).mean().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(UsageError, match="gathered by hand"):
        train()


def test_a_gradient_that_is_dropped_is_not_pushed(start: Callable[..., Stub]) -> None:
    """A loop that leaves out a batch whose loss it does not like."""
    start()
    job, model, optimizer = one_worker()
    model.requires_grad_(True)
    for number, (ids, labels) in enumerate(job.loader(data(), batch_size=BATCH)):
        (model(ids) - labels).pow(2).mean().backward()
        assert model.rows.weight.grad.shape == (IDS, 4)
        if number:
            optimizer.zero_grad()
            assert model.rows.weight.grad is None
        else:
            first = 0.1 - 0.5 * model.rows.weight.grad.mean()
        optimizer.step()
        assert model.rows.weight.grad is None
    with torch.no_grad():
        rows = model.eval().rows(torch.arange(IDS))
    assert float(rows.mean()) == pytest.approx(float(first), rel=1e-4)


def test_a_script_that_leaves_its_loop_gives_its_task_back(start: Callable[..., Stub]) -> None:
    master = start()
    job, model, optimizer = one_worker()
    for number, (ids, labels) in enumerate(job.loader(data(), batch_size=BATCH)):
        optimizer.zero_grad()
        (model(ids) - labels).pow(2).mean().backward()
        optimizer.step()
        if number == 3:
            break
    status = master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    assert (status.tasks_doing, status.tasks_todo) == (0, 2)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from data()


def test_what_servers_do_not_do_is_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    job, _, _ = one_worker()
    options: dict[str, Any] = {"accumulate": 2, "global_batch_size": 60, "drop_last": True}
    for name, value in options.items():
        with pytest.raises(UsageError, match=f"{name}={value}"):
            next(iter(job.loader(data(), batch_size=BATCH, **{name: value})))
    with pytest.raises(UsageError, match="cannot be cut into tasks"):
        next(iter(job.loader(Stream(), batch_size=BATCH)))


def test_second_things_are_refused(start: Callable[..., Stub]) -> None:
    start(servers=1)
    job, model, optimizer = one_worker()
    with pytest.raises(UsageError, match="called twice"):
        job.prepare(model, optimizer)
    records = data()
    with pytest.raises(UsageError, match="with the first batch; run the model in a loop"):
        model(records[:BATCH][0])
    model.out(torch.ones(1, 6)).sum().backward()
    with pytest.raises(UsageError, match=r"outside of a loop over job\.loader"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()  # moves nothing
    batches = iter(job.loader(records, batch_size=BATCH))
    next(batches)
    with pytest.raises(UsageError, match="an evaluation inside the loop"):
        job.collect(lambda rank, world: b"", lambda parts: None)
    with pytest.raises(UsageError, match="a loader of a second dataset"):
        next(iter(job.loader(data(), batch_size=BATCH)))
    with pytest.raises(UsageError, match="batch_size=7: the first loader had 15"):
        next(iter(job.loader(records, batch_size=7)))
    with pytest.raises(UsageError, match="this process has 7 records, another had 750"):
        job._session.report_data(
            pb.ScriptData(records=7, epochs=1, batch_size=1, records_per_task=1)
        )


def test_parts_that_servers_cannot_run_are_refused(
    start: Callable[..., Stub], tmp_path: Path
) -> None:
    start(servers=1)
    with pytest.raises(UsageError, match="give --checkpoint-dir to torch-edl run"):
        one_worker(checkpoint_dir=tmp_path / "mine")
    opening._current.close()
    start(servers=1)
    model = Model(torch_edl.nn.Embedding(None, 4))
    halves = [torch.optim.SGD(p, lr=1.0) for p in (model.rows.parameters(), model.out.parameters())]
    with pytest.raises(UsageError, match="2 optimizers; parameter servers run one"):
        torch_edl.init().prepare(model, halves)
    opening._current.close()
    start(servers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UsageError, match="scheduler_interval='epoch'"):
        torch_edl.ElasticTrainer(
            model, nn.MSELoss(), optimizer, scheduler=scheduler, scheduler_interval="epoch"
        )


def test_an_evaluation_outlives_a_server(start: Callable[..., Stub], tmp_path: Path) -> None:
    """The servers come back with the last checkpoint, and the evaluation is made again."""
    master = start(checkpoint_dir=str(tmp_path / "kept"))
    job, model, optimizer = one_worker()
    loop(job.loader(data(), batch_size=BATCH), model, optimizer, Idle(), clip=False)
    tries = 0

    def measure(rank: int, world: int) -> bytes:
        nonlocal tries
        tries += 1
        if tries == 2:
            status = master.call(pb.GetStatusRequest(), timeout_s=HANG_S)
            server = next(p for p in status.processes if p.role == "ps")
            os.kill(server.pid, signal.SIGKILL)
        with torch.no_grad():
            return model.eval().rows(torch.arange(IDS)).numpy().tobytes()

    wanted = job.gather(measure)
    assert job.gather(measure) == wanted
    assert tries == 3


class Idle:
    def step(self) -> None:
        """No scheduler."""


class Sum(nn.Module):
    """Minus the numbers, times a weight, and minus a count of their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.other = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.rows = torch_edl.nn.Embedding(None, 1, initializer="zeros")

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return -(self.weight + self.other).sum() * len(numbers) - self.rows(numbers).sum()


def test_a_loop_does_to_the_servers_what_it_does_to_the_model(start: Callable[..., Stub]) -> None:
    """Or it raises: what servers do not take over is never lost silently."""
    start(servers=1)
    job, model = torch_edl.init(), Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    with torch.no_grad():
        model.weight.fill_(100.0)  # as load_state_dict does
    loader = iter(job.loader(TensorDataset(torch.arange(32)), batch_size=4))

    def backward() -> None:
        (numbers,) = next(loader)
        optimizer.zero_grad()
        model(numbers).backward()

    backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 0.5
    with pytest.raises(UsageError, match=r"rows.*cannot become a tensor \(3, 1\)"):
        model.rows.weight.grad = torch.zeros(3, 1)
    optimizer.step()
    with pytest.raises(UsageError, match="second step of the optimizer in one batch"):
        optimizer.step()
    backward()
    state = job.state_dict()
    assert state["weight"].item() == 102
    assert state["rows.vectors"].sum().item() == 4 * 0.5
    model.other.requires_grad_(True)
    model(torch.arange(2)).backward()
    with pytest.raises(UsageError, match=r"shape \(1,\) has a gradient and did not have"):
        optimizer.step()
    model.other.requires_grad_(False)
    with torch.no_grad():
        model.weight.clamp_(-1, 1)
    with pytest.raises(UsageError, match="parameter weight was changed other than by"):
        backward()
    job.close()
