"""The three lines in a script of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_edl
from tests.unit.api.counting import Count, counted, numbers, train
from torch_edl.errors import UsageError


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


DATA = TensorDataset(
    torch.randn(50, 6, generator=torch.Generator().manual_seed(1)),
    torch.arange(50) % 3,
)


def test_one_process_is_bit_by_bit_the_plain_loop(jobs: Any) -> None:
    def loop(model: nn.Module, optimizer: Any, batches: Any) -> list[torch.Tensor]:
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    plain = network()
    adam = torch.optim.Adam(plain.parameters())
    for _ in range(3):
        wanted = loop(plain, adam, DataLoader(DATA, batch_size=8))
    job = jobs()
    model = network()
    model, optimizer = job.prepare(model, torch.optim.Adam(model.parameters()))
    loader = job.loader(DATA, batch_size=8, epochs=3)
    assert len(loader) == 21
    got = loop(model, optimizer, loader)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert (job.step, job.rank, job.world_size, job.is_main) == (21, 0, 1, True)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "epochs": 2},
        {"batch_size": 4, "accumulate": 3},
        {"batch_size": 4, "global_batch_size": 10, "epochs": 2},
        {"batch_size": 4, "drop_last": True, "epochs": 3},
        {"batch_size": 20, "drop_last": True},
        {"batch_size": 60, "drop_last": True},
        {"batch_size": 7, "global_batch_size": 25, "drop_last": True},
    ],
)
def test_a_loader_is_as_long_as_it_says(jobs: Any, options: dict[str, Any]) -> None:
    job = jobs()
    counted(50, 1, job)
    loader = job.loader(numbers(50), **options)
    assert len(list(loader)) == len(loader)


def test_a_schedule_counts_updates_and_its_state_can_be_pickled(jobs: Any, tmp_path: Path) -> None:
    job = jobs()
    model = Count(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    plain = set(scheduler.state_dict())
    job.prepare(model, optimizer, scheduler)
    for (batch,) in job.loader(numbers(16), batch_size=3, global_batch_size=8):
        train(model, optimizer, batch)
        scheduler.step()
    assert scheduler.last_epoch == job.step == 2
    torch.testing.assert_close(model.w, torch.ones(16))
    scheduler.step()
    assert scheduler.last_epoch == 3
    assert set(scheduler.state_dict()) == plain
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")


def test_two_optimizers_may_have_a_scheduler_each(jobs: Any) -> None:
    job = jobs()
    model = Count(16, 8)
    optimizers = [torch.optim.SGD([model.w], lr=1.0), torch.optim.SGD([model.w], lr=0.0)]
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1) for each in optimizers]
    assert job.prepare(model, optimizers, schedulers) == (model, optimizers, schedulers)
    for (batch,) in job.loader(numbers(16), batch_size=4, global_batch_size=8):
        train(model, optimizers[0], batch)
        for each in schedulers:
            each.step()
    assert [each.last_epoch for each in schedulers] == [2, 2]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scheduler_that_the_job_was_not_given_is_refused(jobs: Any, when: str) -> None:
    job = jobs()
    model = Count(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if when == "before":
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
    job.prepare(model, optimizer)
    if when == "after":
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
    with pytest.raises(UsageError, match=r"SGD has a scheduler.*prepare\(model, optimizer, sched"):
        next(iter(job.loader(numbers(16), batch_size=4)))


def test_parts_in_the_wrong_place_are_refused(jobs: Any) -> None:
    job = jobs()
    model = Count(16, 8)
    first, second = (torch.optim.SGD(model.parameters(), lr=1.0) for _ in "ab")
    scaler = torch.amp.GradScaler("cpu")
    scheduler = torch.optim.lr_scheduler.StepLR(first, 10)
    for given, wrong in (
        ((second,), r"not SGD; write prepare\(model, \[first, second\]\)"),
        ((scaler,), "not GradScaler; .*scaler=scaler"),
        (([scheduler, 3],), "not int"),
        ((scheduler, scheduler), "scaler: expected a torch.amp.GradScaler, not StepLR"),
    ):
        with pytest.raises(UsageError, match=wrong):
            job.prepare(model, first, *given)


def test_metrics_are_weighted_and_also_of_a_batch_before_a_break(jobs: Any) -> None:
    job = jobs()
    model, optimizer = counted(10, 4, job)
    for (batch,) in job.loader(numbers(10), batch_size=4):
        train(model, optimizer, batch)
        job.log(first=torch.tensor(float(batch[0])), size=len(batch))
        if job.step == 3:
            break
    assert job.metrics() == {"first": (0 * 4 + 4 * 4 + 8 * 2) / 10, "size": (16 + 16 + 4) / 10}
    assert job.metrics() == {}


def test_a_job_goes_on_from_its_checkpoint(jobs: Any, tmp_path: Path) -> None:
    for stop in (3, 10**9):
        job = jobs(checkpoint_dir=tmp_path, checkpoint_every=1, resume=stop > 3)
        model, optimizer = counted(40, 8, job)
        for (batch,) in job.loader(numbers(40), batch_size=8, shuffle=True):
            train(model, optimizer, batch)
            if job.step == stop:
                break
        if stop == 3:
            # As if it had been killed there.
            job.ending.failed = True
        job.close()
    assert model.w.tolist() == [1.0] * 40
    assert job.step == 5


def test_a_checkpoint_of_another_model_is_refused(jobs: Any, tmp_path: Path) -> None:
    job = jobs(checkpoint_dir=tmp_path)
    model, optimizer = counted(8, 8, job)
    for (batch,) in job.loader(numbers(8), batch_size=8):
        train(model, optimizer, batch)
    job.close()
    with pytest.raises(UsageError, match="resume=True"):
        jobs(checkpoint_dir=tmp_path)
    with pytest.raises(torch_edl.errors.CheckpointError, match="another model"):
        counted(9, 8, jobs(checkpoint_dir=tmp_path, resume=True))


def test_the_cells_of_a_notebook_may_be_run_again(jobs: Any) -> None:
    """``init`` closes the job before, and ``prepare`` replaces what was prepared."""
    before, job = jobs(), jobs()
    assert before.closed
    model = Count(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        job.prepare(model, optimizer)
        for (batch,) in job.loader(numbers(8), batch_size=2, accumulate=2):
            train(model, optimizer, batch)
            kept = iter(job.loader(numbers(8)))  # never read
        assert job.step == 2
    assert model.w.tolist() == [2.0] * 8
    other, its = counted(8, 4, job)
    for (batch,) in job.loader(numbers(8), batch_size=4):
        train(other, its, batch)
    assert (job.step, other.w.tolist(), model.w.tolist()) == (2, [1.0] * 8, [2.0] * 8)
    kept.close()


def test_what_cannot_work_is_said(jobs: Any, tmp_path: Path) -> None:
    job = jobs()
    with pytest.raises(UsageError, match=r"call job\.prepare"):
        next(iter(job.loader(numbers(4))))
    model = Count(4, 4)
    other = nn.Parameter(torch.zeros(3))
    with pytest.raises(UsageError, match=r"shape \(3,\) that the model does not have"):
        job.prepare(model, torch.optim.SGD([*model.parameters(), other], lr=1.0))
    job = jobs(checkpoint_dir=tmp_path)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(UsageError, match="called twice"):
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"global_batch_size": 4}])
def test_rows_of_a_table_are_not_accumulated(jobs: Any, options: dict[str, int]) -> None:
    """Their gradients were applied after each batch, with the weight of a whole update."""
    job = jobs()
    model = torch_edl.nn.Embedding(None, 1)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(UsageError, match="updated with each batch"):
        next(iter(job.loader(TensorDataset(torch.arange(8)), batch_size=2, **options)))
