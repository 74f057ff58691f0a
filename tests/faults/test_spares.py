"""A spare takes the place of a worker that is killed; storms hit workers and spares alike."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import TASKS, Job, ModelJob
from tests.place import EDL

FLAGS = ["--workers", "2", *TASKS]
STORM = """
seed = 5
for = "20s"
[[fault]]
kill = "worker=1"
every = "3s"
[[fault]]
kill = "spare=1"
at = "200ms"
[[fault]]
kill = "spare=1"
every = "4s"
[[fault]]
kill = "worker=2,spare=2"
at = "12s"
[[fault]]
pause = "spare=1:4s"
at = "6s"
[[fault]]
kill = "master=1"
at = "15s"
"""


def texts(job: Job) -> list[str]:
    return [event.text for event in job.status().events]


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_killed_worker(start_job: Callable[..., ModelJob]) -> None:
    """No other process is started before that, and every record counts once."""
    # Enough for a worker that starts late: a spare waits for the first step of all.
    job = start_job(1200, "--ps", "1", *FLAGS, "--spares", "1", delay_s=0.05)
    job.wait_for(lambda: job.running("spare"))
    (spare,), workers = job.running("spare"), job.running("worker")
    assert len(workers) == 2
    assert set(job.pids("worker")) == workers | {spare}
    victim = min(workers)
    os.kill(victim, signal.SIGKILL)
    job.wait_for(lambda: spare in job.running("worker"))
    assert job.running("worker") == workers - {victim} | {spare}
    assert "spare-2 takes the place of a worker" in texts(job)
    job.check()
    assert ("worker", 2) in {(p["role"], p["id"]) for p in job.summary()["processes"]}


@pytest.mark.slow
def test_a_spare_becomes_a_server(start_job: Callable[..., ModelJob]) -> None:
    """Rather than a worker, with ``--ps-failover worker``; it is a server like any other."""
    flags = ["--ps", "2", "--spares", "1", "--durability", "journal", "--ps-failover", "worker"]
    job = start_job(1000, *FLAGS, *flags, delay_s=0.05)
    job.wait_for(lambda: job.running("spare"))
    (spare,), workers = job.running("spare"), job.running("worker")
    job.kill("ps")
    job.wait_for(lambda: spare in job.running("ps"))
    assert job.running("worker") == workers
    os.kill(spare, signal.SIGKILL)
    job.wait_for(lambda: spare not in job.running("ps") and len(job.running("ps")) == 2)
    assert job.status().rollbacks == 0
    job.check()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_storm_of_kills_of_workers_and_spares(
    start_job: Callable[..., ModelJob], durability: str
) -> None:
    flags = ["--ps", "2", "--spares", "2", "--durability", durability]
    job = start_job(4000, *FLAGS, *flags, delay_s=0.05)
    job.wait_for(lambda: len(job.running("spare")) == 2, 120)
    plan = job.log.with_name("storm.toml")
    plan.write_text(STORM)
    with job.storm("--plan", str(plan)) as storming:
        pass
    verdict = storming.verdict
    assert verdict["kills"]["worker"] >= 5
    assert verdict["kills"]["spare"] >= 1  # a busy machine has no other one in time
    assert verdict["rolled_back"]["times"] == 0
    assert " takes the place of a worker" in (job.folder / "events.jsonl").read_text()
    job.check()


FILE = """
import pathlib, sys, time
import torch
if pathlib.Path(sys.argv[1], "broken").exists():
    raise RuntimeError("somebody edits this file")
def model():
    return torch.nn.Linear(1, 1)
def loss(labels, predictions):
    return (predictions - labels).mean()
def optimizer(params):
    return torch.optim.SGD(params, lr=0.0)
def feed(records, mode, metadata):
    while not pathlib.Path(sys.argv[1], "ring-goes-on").exists() and 599 in records["n"].to_numpy():
        time.sleep(0.01)
    time.sleep(0.05)
    numbers = torch.tensor(records["n"].to_numpy(), dtype=torch.float32)[:, None]
    return numbers, numbers
"""


@pytest.mark.slow
def test_a_model_file_that_a_spare_cannot_load(tmp_path: Path, jobs: contextlib.ExitStack) -> None:
    """The workers have loaded it before: the job continues, and says so once."""
    (tmp_path / "file.py").write_text(FILE)
    (tmp_path / "n.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(600)))
    command = [
        *EDL, "run", str(tmp_path / "file.py"), "--data", str(tmp_path / "n.csv"), "--strategy",
        "allreduce", "--workers", "2", "--spares", "2", "--job-name", "ring", "--batch-size", "4",
        "--no-shuffle", "--", str(tmp_path),
    ]  # fmt: skip
    job = jobs.enter_context(
        contextlib.closing(Job(tmp_path, "ring", command, "torch_edl.training.worker"))
    )
    job.wait_for(lambda: job.done() > 0)
    (tmp_path / "broken").touch()
    said = "RuntimeError: somebody edits this file; a spare found this, the workers continue"
    job.wait_for(lambda: any(said in text for text in texts(job)))
    job.wait_for(lambda: not any(p.role == "spare" and p.state != "exited"
                                 for p in job.status().processes))  # fmt: skip
    assert sum(said in text for text in texts(job)) == 1
    job.end_well()
    assert "somebody edits this file" in job.log.read_text()
