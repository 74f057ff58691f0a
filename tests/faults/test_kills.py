"""Single processes of a job are killed; every record is counted exactly once all the same."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.conftest import KEEP, TASKS

RECORDS = 1000
FLAGS = ["--workers", "2", "--ps", "2", *TASKS]


@pytest.mark.slow  # tests/unit/master/job/test_job_losses.py sees that all begins again
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_killed_server(start_job: Callable[..., Any], checkpoints: bool) -> None:
    """All servers go back to the last checkpoint, or to the beginning, and the data with them."""
    job = start_job(RECORDS, *FLAGS, *(KEEP if checkpoints else []))
    job.wait_for(lambda: job.done() > 300 and bool(job.status().checkpoint) == checkpoints)
    job.kill("ps")
    job.check()
    assert len([p for p in job.summary()["processes"] if p["role"] == "ps"]) == 4


@pytest.mark.slow
def test_the_local_worker_is_killed(start_job: Callable[..., Any]) -> None:
    """It held the model: the next one continues from the last checkpoint."""
    job = start_job(RECORDS, "--strategy", "local", "--no-shuffle", *TASKS, *KEEP)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    job.kill("worker")
    job.check()


@pytest.mark.slow
def test_a_stopped_job_goes_on_from_its_checkpoint(start_job: Callable[..., Any]) -> None:
    """Stopped by Ctrl-C, then resumed with another number of servers and workers."""
    first = start_job(RECORDS, *FLAGS, *KEEP, name="first")
    first.wait_for(lambda: first.done() > 300 and first.status().checkpoint)
    first.process.send_signal(signal.SIGINT)
    assert first.finish(20) == 130
    second = start_job(RECORDS, "--ps", "3", *TASKS, *KEEP, "--resume", name="second")
    second.check()


def test_a_worker_dies_between_its_last_push_and_its_report(start_job: Callable[..., Any]) -> None:
    """Tasks of a single minibatch: there is always one that is applied and not reported."""
    flags = ["--strategy", "ps", "--ps", "2", "--batch-size", "8", "--records-per-task", "8"]
    job = start_job(RECORDS // 2, *flags, "--no-shuffle", delay_s=0.05)
    job.wait_for(lambda: job.done() > 40)
    job.kill("worker")
    job.check()


def test_tasks_that_a_slow_worker_holds_go_to_an_idle_one(start_job: Callable[..., Any]) -> None:
    """One worker waits in its feed for the last record, with leases for seconds of work."""
    flags = ["--workers", "2", "--ps", "2", "--batch-size", "8", "--records-per-task", "8"]
    job = start_job(RECORDS, *flags)
    # It keeps the task in its feed, and one that is prepared.
    job.wait_for(lambda: job.done() >= RECORDS - 2 * 8 and job.status().tasks.doing <= 2)
    job.check()
