"""Workers of TensorFlow, alone and beside workers of torch, count every record exactly once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.conftest import ModelJob, jobs, start_job
from tests.tf_compat import installed

__all__ = ["installed", "jobs", "start_job"]

RECORDS = 1000
OURS = Path(__file__).with_name("counting_tf.py")
THEIRS = Path(__file__).with_name("counting_torch.py")
FLAGS = ["--ps", "2", "--batch-size", "8", "--records-per-task", "64", "--no-shuffle"]


def kill_worker(job: ModelJob, number: int) -> None:
    """SIGKILL to worker ``number``, which lives."""
    for pid in job.pids("worker"):
        words = psutil.Process(pid).cmdline()
        if words[words.index("--id") + 1] == str(number):
            os.kill(pid, signal.SIGKILL)
            return
    pytest.fail(f"no worker {number}:\n{job.report()}")


def has_tensorflow(pid: int) -> bool:
    return any("tensorflow" in each.path for each in psutil.Process(pid).memory_maps())


def test_workers_of_both_frameworks_train_one_model(
    start_job: Callable[..., Any],
) -> None:
    flags = ["--workers", "2", "--also", str(OURS)]
    job = start_job(RECORDS, *FLAGS, *flags, model=THEIRS)
    job.wait_for(lambda: job.done() > 200)
    assert sorted(map(has_tensorflow, job.pids("worker"))) == [False, True]
    kill_worker(job, 1)  # of TensorFlow; worker 2, of torch, comes in its place
    kill_worker(job, 0)  # of torch; worker 3, of TensorFlow, comes
    job.go_on()
    job.check()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--tf-function"], ["--mode", "sync"]])
def test_killed_workers_and_servers_of_a_keras_model(
    start_job: Callable[..., Any], flags: list[str]
) -> None:
    keep = ["--checkpoint-every", "20", "--checkpoint-dir", "DIR"]
    quorum = 2 if "sync" in flags else 1
    flags = ["--workers", "2", *keep, *flags]
    job = start_job(RECORDS, *FLAGS, *flags, model=OURS, quorum=quorum)
    job.wait_for(lambda: job.done() > 200 and job.status().checkpoint)
    job.kill("worker")
    job.wait_for(lambda: job.done() > 400)
    job.kill("ps")
    job.go_on()
    job.check()


@pytest.mark.slow
def test_the_local_worker_of_a_keras_model_is_killed(
    start_job: Callable[..., Any],
) -> None:
    keep = ["--checkpoint-every", "20", "--checkpoint-dir", "DIR"]
    flags = [flag for flag in FLAGS if flag not in ("--ps", "2")]
    job = start_job(RECORDS, "--strategy", "local", *flags, *keep, model=OURS)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    job.kill("worker")
    job.go_on()
    job.check()
