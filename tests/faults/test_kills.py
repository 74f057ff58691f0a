"""Processes of a job are killed; every record is counted exactly once all the same."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

RECORDS = 2000
FLAGS = ["--workers", "3", "--ps", "2", "--batch-size", "8", "--records-per-task", "64"]


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))]
)
def test_workers_are_killed_at_random(start_job: Callable[..., Any], seed: int) -> None:
    """SIGKILL, mostly; SIGTERM now and then; never a pause in which the job may settle."""
    chance = random.Random(seed)
    steps = chance.choice([1, 1, 2, 4])
    job = start_job(RECORDS, *FLAGS, "--seed", str(seed), "--local-steps", str(steps),
                    "--staleness", str(chance.choice([0, 1, 2])), delay_s=0.01)  # fmt: skip
    job.wait_for(lambda: job.pids("worker"))
    killed = 0
    while job.process.poll() is None and killed < 6:
        time.sleep(chance.uniform(0.05, 1.2))
        workers = job.pids("worker")
        if workers:
            victim = chance.choice(workers)
            how = signal.SIGTERM if chance.random() < 0.2 else signal.SIGKILL
            try:
                os.kill(victim, how)
                killed += 1
            except ProcessLookupError:
                continue
    assert job.wait(100) == 0, job.log.read_text()[-4000:]
    assert killed >= 2
    job.check_counts(RECORDS, 1)
    assert job.summary()["records"] == RECORDS


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_killed_server(start_job: Callable[..., Any], checkpoints: bool) -> None:
    """All servers go back to the last checkpoint, or to the beginning, and the data with them."""
    flags = ["--checkpoint-every", "20", "--checkpoint-dir", "DIR"] if checkpoints else []
    job = start_job(RECORDS, *FLAGS, *flags, delay_s=0.01)
    job.wait_for(lambda: job.records_done() > 600)
    kill(job.pids("ps")[:1])
    assert job.wait(100) == 0, job.log.read_text()[-4000:]
    job.check_counts(RECORDS, 1)
    assert len([p for p in job.summary()["processes"] if p["role"] == "ps"]) == 4


def test_the_local_worker_is_killed(start_job: Callable[..., Any]) -> None:
    """It held the model: the next one goes on from the last checkpoint."""
    flags = ["--strategy", "local", "--batch-size", "8", "--records-per-task", "64"]
    keep = ["--checkpoint-every", "20", "--checkpoint-dir", "DIR"]
    job = start_job(RECORDS, *flags, *keep, delay_s=0.01)
    job.wait_for(lambda: job.records_done() > 600)
    kill(job.pids("worker"))
    assert job.wait(100) == 0, job.log.read_text()[-4000:]
    job.check_counts(RECORDS, 1)


@pytest.mark.parametrize("victim", ["client", "master"])
def test_nothing_outlives_client_or_master(start_job: Callable[..., Any], victim: str) -> None:
    """The check for orphans is the fixture's."""
    job = start_job(RECORDS, *FLAGS, delay_s=0.05)
    job.wait_for(lambda: job.records_done() > 0)
    kill([job.process.pid] if victim == "client" else job.pids("master"))
    assert job.wait(20) != 0


def test_a_stopped_job_goes_on_from_its_checkpoint(start_job: Callable[..., Any]) -> None:
    """Stopped by Ctrl-C, then resumed with another number of servers and workers."""
    keep = ["--checkpoint-every", "20", "--checkpoint-dir", "DIR"]
    first = start_job(RECORDS, *FLAGS, *keep, delay_s=0.01, name="first")
    first.wait_for(lambda: first.records_done() > 900)
    first.process.send_signal(signal.SIGINT)
    assert first.wait(20) == 130
    second = start_job(RECORDS, "--workers", "2", "--ps", "3", "--batch-size", "8",
                       "--records-per-task", "64", *keep, "--resume", name="second")  # fmt: skip
    assert second.wait(100) == 0, second.log.read_text()[-4000:]
    second.check_counts(RECORDS, 1)


def test_scaling_while_it_trains(start_job: Callable[..., Any]) -> None:
    job = start_job(RECORDS, "--workers", "1:4", "--ps", "2", "--batch-size", "8",
                    "--records-per-task", "64", delay_s=0.03)  # fmt: skip
    job.wait_for(lambda: job.records_done() > 0)
    for workers in ("1", "3"):
        job.scale(workers)
        job.wait_for(lambda n=int(workers): len(job.pids("worker")) == n)
    assert job.wait(100) == 0, job.log.read_text()[-4000:]
    job.check_counts(RECORDS, 1)


def test_a_worker_dies_between_its_last_push_and_its_report(start_job: Callable[..., Any]) -> None:
    """Tasks of a single minibatch: there is always one that is applied and not reported."""
    flags = ["--workers", "2", "--ps", "2", "--batch-size", "8", "--records-per-task", "8"]
    job = start_job(RECORDS // 2, *flags, delay_s=0.05)
    for wanted in (40, 300):
        job.wait_for(lambda n=wanted: job.records_done() > n)
        kill(job.pids("worker"))
    assert job.wait(100) == 0, job.log.read_text()[-4000:]
    job.check_counts(RECORDS // 2, 1)
