"""The job of a process: who finds it, and who trains with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import torch_edl
from torch_edl.errors import UsageError
from torch_edl.wire.channel import Stub


def parts() -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_trainer_takes_the_job_that_the_script_made(jobs: Any) -> None:
    job = jobs(seed=3)
    trainer = torch_edl.ElasticTrainer(*parts())
    assert trainer.job is job
    trainer.fit(TensorDataset(torch.rand(8, 2), torch.rand(8, 1)), batch_size=4, verbose=False)
    assert job.step == 2
    # A second one in a notebook has a job of its own.
    other = torch_edl.ElasticTrainer(*parts())
    assert other.job is not job
    assert torch_edl.current_job() is other.job
    other.job.close()
    assert not job.closed


def test_a_trainer_takes_the_job_under_a_launcher_too(start: Callable[..., Stub]) -> None:
    start(strategy="allreduce")
    job = torch_edl.init()
    assert torch_edl.ElasticTrainer(*parts()).job is job
    with pytest.raises(UsageError, match="this process has a job already"):
        torch_edl.ElasticTrainer(*parts())
    job.close()


@pytest.mark.parametrize("given", [True, False])
def test_options_of_a_job_that_exists_are_refused(jobs: Any, given: bool) -> None:
    job = jobs()
    with pytest.raises(UsageError, match=r"has made the job; pass seed, resume to torch_edl.init"):
        torch_edl.ElasticTrainer(*parts(), job=job if given else None, seed=1, resume=True)


def test_the_current_job_is_the_newest_that_is_open(jobs: Any) -> None:
    job = jobs()
    assert torch_edl.current_job() is job
    second = jobs()
    assert job.closed
    assert torch_edl.current_job() is second
    second.close()
    assert torch_edl.current_job() is None


def test_prepare_returns_what_it_was_given(jobs: Any) -> None:
    class Warmup(torch.optim.lr_scheduler.StepLR):
        scale = 0.5  # which is not the method of a scaler

    model, _, optimizer = parts()
    scheduler = Warmup(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    assert jobs().prepare(model, optimizer) == (model, optimizer)
    assert jobs().prepare(model, [optimizer]) == (model, [optimizer])
    assert jobs().prepare(model, optimizer, scaler=scaler) == (model, optimizer, scaler)
    given = (model, optimizer, scheduler, scaler)
    assert jobs().prepare(*given) == given


def test_a_script_in_which_no_torch_edl_was_seen_hears_of_it(
    jobs: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCH_EDL_UNSEEN", "1")
    with caplog.at_level(logging.WARNING):
        jobs()
    assert "this job is not elastic" in caplog.text
    assert "write `import torch_edl` in the script" in caplog.text
