"""Workers of TensorFlow count every record exactly once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import KEEP, TASKS, ModelJob, jobs, start_job
from tests.tf_compat import installed
from torch_edl.preprocessing import Columns

__all__ = ["installed", "jobs", "start_job"]

RECORDS = 1000
TORCH = Path(__file__).parents[1] / "faults" / "counting_model.py"
FITTED = Path(__file__).with_name("fitted_tf.py")
SHUFFLING = Path(__file__).with_name("shuffling_tf.py")
OURS = Path(__file__).with_name("counting_tf.py")
FLAGS = ["--ps", "2", *TASKS, "--no-shuffle"]


def kill_worker(job: ModelJob, number: int) -> None:
    """SIGKILL to worker ``number``, which lives."""
    for pid in job.pids("worker"):
        words = psutil.Process(pid).cmdline()
        if words[words.index("--id") + 1] == str(number):
            os.kill(pid, signal.SIGKILL)
            return
    pytest.fail(f"no worker {number}:\n{job.report()}")


@pytest.mark.slow
def test_killed_workers_of_a_keras_model(start_job: Callable[..., Any]) -> None:
    job = start_job(RECORDS, *FLAGS, "--workers", "2", model=OURS)
    job.wait_for(lambda: job.done() > 200)
    kill_worker(job, 1)
    kill_worker(job, 0)
    job.go_on()
    job.check()


@pytest.mark.slow
def test_a_storm_over_workers_whose_dataset_shuffles(start_job: Callable[..., Any]) -> None:
    durable = ["--durability", "journal"]
    job = start_job(RECORDS, *FLAGS, *durable, "--workers", "2", model=SHUFFLING, delay_s=0.05)
    job.wait_for(lambda: job.done() > 0)
    with job.storm("--kill", "worker=1,ps=1", "--every", "4s", "--for", "12s") as storming:
        pass
    assert storming.verdict["kills"]["worker"] > 1
    job.check()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--tf-function"], ["--mode", "sync"]])
def test_killed_workers_and_servers_of_a_keras_model(
    start_job: Callable[..., Any], flags: list[str]
) -> None:
    quorum = 2 if "sync" in flags else 1
    flags = ["--workers", "2", *KEEP, *flags]
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
    flags = [flag for flag in FLAGS if flag not in ("--ps", "2")]
    job = start_job(RECORDS, "--strategy", "local", *flags, *KEEP, model=OURS)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    job.kill("worker")
    job.go_on()
    job.check()


@pytest.mark.slow
def test_a_worker_of_a_fitted_model_is_replaced(
    start_job: Callable[..., Any],
) -> None:
    """Updates of 8 minibatches, preprocessing, and outputs of layers in the log."""
    flags = ["--workers", "2", "--local-steps", "8", "--log-layers", "rows"]
    job = start_job(RECORDS, *FLAGS, *flags, model=FITTED)
    job.wait_for(lambda: job.done() > 100)
    kill_worker(job, 1)
    job.go_on()
    job.check()
    assert "rows (8, 2): mean" in job.log.read_text()
    fitted = Columns.open(job.output)
    assert fitted.fitted("word").total == RECORDS
    assert fitted.fitted("x").mean == (RECORDS - 1) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(OURS, TORCH), (TORCH, OURS)], ids=["tf", "torch"])
def test_a_job_of_the_other_framework_loads_the_model(
    start_job: Callable[..., Any], first: Path, second: Path
) -> None:
    counted = start_job(RECORDS, *FLAGS, "--workers", "1", model=first, delay_s=0)
    counted.go_on()
    counted.check()
    flags = ["--workers", "1", "--load", str(counted.output)]
    again = start_job(RECORDS, *FLAGS, *flags, model=second, delay_s=0, name="again")
    again.go_on()
    assert again.finish() == 0, again.report()
    rows = load_file(again.output / "embeddings" / "rows.safetensors")
    assert rows["ids"].tolist() == list(range(RECORDS))
    assert (rows["vectors"] == 2).all()
    assert (load_file(again.output / "model.safetensors")["total"] == 2 * RECORDS).all()
