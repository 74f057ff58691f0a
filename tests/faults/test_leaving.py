"""Workers get SIGTERM, whatever they do: they leave in time, and nothing is lost or repeated."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import MODEL, ModelJob
from tests.place import ROOT

RECORDS = 600
GRACE_S = 3.0
FLAGS = ["--workers", "2", "--strategy", "ps", "--ps", "2", "--batch-size", "8"]
FLAGS += ["--records-per-task", "64", "--grace-period", str(GRACE_S)]

# Blocks once, in the place that the file BLOCK names.
BLOCKING = """

import os

def block(place):
    try:
        os.rename(f"{GATE}-block-{place}", f"{GATE}-blocked")
    except FileNotFoundError:
        return
    time.sleep(600)

block("import")
_feed, _Count = feed, counting.Count

def feed(records, mode, metadata):
    block("feed")
    return _feed(records, mode, metadata)

class Count(_Count):
    def forward(self, numbers):
        block("forward")
        if not self.training:
            time.sleep(0.5)
        return super().forward(numbers)

def eval_metrics_fn():
    return {"zero": lambda labels, predictions: 0.0}

counting.Count = Count
"""


@pytest.fixture
def start(start_job: Callable[..., ModelJob], tmp_path: Path) -> Callable[..., ModelJob]:
    """``start(*flags, block="")``: the counting model blocks where ``block`` says."""

    def start_blocking(*flags: str, block: str = "", **how: Any) -> ModelJob:
        model = tmp_path / "blocking.py"
        text = MODEL.read_text().replace("Path(__file__).parents[2]", f"Path({str(ROOT)!r})")
        model.write_text(text + BLOCKING)
        if block:
            (tmp_path / f"count-goes-on-block-{block}").touch()
        return start_job(RECORDS, *FLAGS, *flags, model=model, **how)

    return start_blocking


def blocked(tmp_path: Path) -> bool:
    return (tmp_path / "count-goes-on-blocked").exists()


def leave(job: ModelJob, worker: int) -> None:
    """SIGTERM to a worker, which is gone soon after."""
    process = psutil.Process(worker)
    process.terminate()
    with contextlib.suppress(psutil.NoSuchProcess):
        job.wait_for(lambda: process.status() == psutil.STATUS_ZOMBIE or not process.is_running())


def exit_of(job: ModelJob, pid: int) -> str:
    """How the process of a worker ended, as the job tells."""
    job.wait_for(lambda: any(p.pid == pid and p.exit for p in job.status().processes))
    return next(p.exit for p in job.status().processes if p.pid == pid)


def left(job: ModelJob, pid: int) -> None:
    """The worker left as it was asked to, and that was no failure."""
    assert exit_of(job, pid) == "exit code 143"
    number = next(p.id for p in job.status().processes if p.pid == pid)
    job.wait_for(
        lambda: any(
            event.text == f"worker-{number} ended with exit code 143, as asked"
            and event.level == "info"
            for event in job.status().events
        )
    )


def finish(job: ModelJob) -> None:
    job.check()
    assert job.summary()["records"] == RECORDS


def test_in_training(start: Callable[..., ModelJob]) -> None:
    job = start(delay_s=0.4)
    # One that starts knows no SIGTERM yet.
    job.wait_for(lambda: job.done() > 0 and len(job.running("worker")) == 2)
    pid = min(job.running("worker"))
    leave(job, pid)
    left(job, pid)
    finish(job)
    assert "was killed" not in job.report()


@pytest.mark.slow
def test_tasks_that_were_not_begun_are_returned_at_once(
    start: Callable[..., ModelJob], tmp_path: Path
) -> None:
    """While a minibatch takes long; another worker trains them."""
    job = start("--workers", "1", "--records-per-task", "16", "--grace-period", "1000")

    def leases() -> int:
        return sum(p.leases for p in job.status().processes if p.role == "worker")

    job.wait_for(lambda: job.done() > 100)
    (tmp_path / "count-goes-on-block-forward").touch()
    job.wait_for(lambda: blocked(tmp_path) and leases() > 8)
    (pid,) = job.pids("worker")
    os.kill(pid, signal.SIGTERM)
    # The tasks in training, and the next two, which are being prepared.
    job.wait_for(lambda: leases() <= 4)
    assert job.pids("worker") == [pid]
    os.kill(pid, signal.SIGKILL)
    finish(job)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["feed", "import", "forward"])
def test_blocked_in_code_of_the_user(
    start: Callable[..., ModelJob], tmp_path: Path, place: str
) -> None:
    # In order: the data stop at the last record, and another order may begin with its task.
    job = start("--workers", "1", "--no-shuffle", block=place)
    job.wait_for(lambda: blocked(tmp_path))
    (pid,) = job.pids("worker")
    leave(job, pid)
    left(job, pid)
    finish(job)


@pytest.mark.slow
def test_while_servers_start(start: Callable[..., ModelJob]) -> None:
    job = start("--workers", "1", "--grace-period", "1000")
    job.wait_for(lambda: job.pids("ps"))
    servers = [psutil.Process(pid) for pid in job.pids("ps")]
    for server in servers:
        server.suspend()
    job.wait_for(lambda: job.status().tasks.todo)
    (pid,) = job.pids("worker")
    leave(job, pid)
    for server in servers:
        server.resume()
    left(job, pid)
    finish(job)


@pytest.mark.slow
def test_in_an_evaluation(start: Callable[..., ModelJob], tmp_path: Path) -> None:
    """Tasks that take longer than the grace period are done by other workers from the beginning."""
    records = pa.table({"n": range(80)})  # 64 of them take 4 s
    pq.write_table(records, tmp_path / "evaluated.parquet")
    job = start("--workers", "1", "--eval-data", str(tmp_path / "evaluated.parquet"))
    job.go_on()
    job.wait_for(lambda: job.status().epoch == 1)
    (pid,) = job.pids("worker")
    leave(job, pid)
    left(job, pid)
    assert "unfinished after the grace period" not in job.report()
    job.check()
    assert job.summary()["metrics"]


@pytest.mark.slow
def test_a_server_that_hangs(start: Callable[..., ModelJob]) -> None:
    job = start()
    job.wait_for(lambda: job.done() > 0 and len(job.pids("worker")) == 2)
    server = psutil.Process(job.pids("ps")[0])
    server.suspend()
    pid = job.pids("worker")[0]
    leave(job, pid)
    server.resume()
    left(job, pid)
    finish(job)


@pytest.mark.slow
def test_a_master_that_hangs(start: Callable[..., ModelJob]) -> None:
    job = start()
    job.wait_for(lambda: job.done() > 0 and len(job.pids("worker")) == 2)
    pid = job.pids("worker")[0]
    master = psutil.Process(job.pids("master")[0])
    master.suspend()
    leave(job, pid)
    master.resume()
    left(job, pid)
    finish(job)


@pytest.mark.slow
def test_preemptions_in_a_row_are_no_failure(start: Callable[..., ModelJob]) -> None:
    """More of them than the limits of crashes and of kills, before anything is trained."""
    job = start("--workers", "1", delay_s=0.0)
    for _ in range(7):
        job.wait_for(lambda: job.pids("worker"))
        (pid,) = job.pids("worker")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        job.wait_for(lambda pid=pid: pid not in job.pids("worker"))
    finish(job)
