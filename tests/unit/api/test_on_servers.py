"""A script's own loop on real parameter servers, with a real master."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_edl
from tests.unit.api.served import (
    BATCH,
    IDS,
    STEPS,
    Model,
    data,
    loop,
    plain_embedding,
    prepared,
    status_of,
    unbounded_embedding,
)
from torch_edl.checkpoint.layout import step_dir
from torch_edl.wire.channel import Stub

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.parametrize(
    ("name", "table", "clip"),
    [
        ("sgd", "unbounded", 0.0),
        ("adam", "swapped", 0.05),
        pytest.param("adagrad", "unbounded", 0.0, marks=pytest.mark.slow),
    ],
)
def test_50_steps_equal_a_plain_loop(
    start: Callable[..., Stub], name: str, table: str, clip: float
) -> None:
    start(large_embedding=10, staleness=0)
    records = data()
    theirs = Model(plain_embedding())
    optimizer = OPTIMIZERS[name](theirs.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    loader = torch.utils.data.DataLoader(records, batch_size=BATCH)
    wanted = loop(loader, theirs, optimizer, scheduler, clip=clip)

    ours = Model(plain_embedding() if table == "swapped" else unbounded_embedding())
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


def test_loops_over_a_loader_train_as_long_as_the_script_likes(
    start: Callable[..., Stub], tmp_path: Path
) -> None:
    """Each ends with the model of all its batches, and with a checkpoint that holds it. A loop that
    is left early gives its task back."""
    folder = tmp_path / "kept"
    master = start(staleness=0, checkpoint_dir=str(folder))
    records = data()
    ids, labels = records.tensors
    job, model, optimizer = prepared()
    loader = job.loader(records, batch_size=BATCH)
    losses = []

    def validate() -> float:
        with torch.no_grad():
            return float((model.eval()(ids) - labels).pow(2).mean())

    for number in range(1, 4):
        model.train()
        loop(loader, model, optimizer)
        losses.append(validate())
        status = status_of(master)
        assert (status.epochs, status.records.done) == (number, number * len(ids))
        assert status.checkpoint == str(step_dir(folder, number * STEPS))
    assert losses == sorted(losses, reverse=True)
    assert validate() == losses[-1]
    for number, _ in enumerate(loader):
        if number == 3:
            break
    status = status_of(master)
    assert (status.tasks.doing, status.tasks.todo) == (0, 2)
    assert sum(1 for _ in loader) == 2 * STEPS - 3
    job.close()


def test_rates_set_by_hand_are_those_of_the_servers(start: Callable[..., Stub]) -> None:
    """The rate at the step counts, not a later one; other values are the servers' own."""
    start(servers=1)
    job, model, optimizer = prepared()
    before = model.out.bias.item()
    for number, _ in enumerate(job.loader(data(), batch_size=BATCH)):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 2.0 if number == 2 else 0.5
        (-model.out.bias.sum()).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 1000.0
    assert job.state_dict()["out.bias"].item() - before == pytest.approx(0.5 * (STEPS - 1) + 2)
    job.close()


def test_the_trainer_class_goes_epoch_by_epoch(start: Callable[..., Stub]) -> None:
    master = start()
    model = Model(torch_edl.nn.Embedding(None, 4))
    seen: list[tuple[int, int]] = []

    class Callback:
        def on_epoch_end(self, epoch: int, figures: dict[str, float]) -> None:
            seen.append((epoch, trainer.job.step))

    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
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
    status = status_of(master)
    assert (status.strategy, status.epochs, status.records.done) == ("ps", 3, 3 * len(ids))
    (more,) = trainer.fit(records, batch_size=BATCH, eval_dataset=records, verbose=False)
    assert more["eval_loss"] != losses[-1]  # it was trained further
    status = status_of(master)
    assert (status.epochs, status.records.done) == (4, 4 * len(ids))


def test_the_model_decides_where_it_is(start: Callable[..., Stub]) -> None:
    start(strategy="auto")
    job, _, _ = prepared()
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
    job, model, optimizer = prepared()
    before = {name: value.clone() for name, value in model.named_parameters()}
    for ids, labels in job.loader(data(), batch_size=BATCH):
        optimizer.zero_grad()
        (model(ids) - labels).pow(2).mean().backward()
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        assert torch.equal(model.eval().rows(torch.arange(IDS)), torch.full((IDS, 4), 0.1))
    status = status_of(master)
    assert status.records.done == len(data())


@pytest.mark.parametrize("to_none", [True, False])
def test_a_gradient_that_is_dropped_is_not_pushed(
    start: Callable[..., Stub], to_none: bool
) -> None:
    """A loop that leaves out a batch whose loss it does not like."""
    start()
    job, model, optimizer = prepared()
    model.requires_grad_(True)
    for number, (ids, labels) in enumerate(job.loader(data(), batch_size=BATCH)):
        (model(ids) - labels).pow(2).mean().backward()
        assert model.rows.weight.grad.shape == (IDS, 4)
        if number:
            optimizer.zero_grad(set_to_none=to_none)
            gradient = model.rows.weight.grad
            assert gradient is None if to_none else not gradient.any()
        else:
            first = 0.1 - 0.5 * model.rows.weight.grad.mean()
        optimizer.step()
        assert model.rows.weight.grad is None
    with torch.no_grad():
        rows = model.eval().rows(torch.arange(IDS))
    assert float(rows.mean()) == pytest.approx(float(first), rel=1e-4)


def test_an_evaluation_outlives_a_server(start: Callable[..., Stub], tmp_path: Path) -> None:
    """The servers come back with the last checkpoint, and the evaluation is made again."""
    master = start(checkpoint_dir=str(tmp_path / "kept"))
    job, model, optimizer = prepared()
    loop(job.loader(data(), batch_size=BATCH), model, optimizer)
    tries = 0

    def measure(rank: int, world: int) -> bytes:
        nonlocal tries
        tries += 1
        if tries == 2:
            status = status_of(master)
            server = next(p for p in status.processes if p.role == "ps")
            os.kill(server.pid, signal.SIGKILL)
        with torch.no_grad():
            return model.eval().rows(torch.arange(IDS)).numpy().tobytes()

    wanted = job.gather(measure)
    assert job.gather(measure) == wanted
    assert tries == 3
