"""A machine goes down with all processes of a job, and the job is continued."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import KEEP, TASKS, ModelJob
from tests.place import EDL
from tests.waiting import HANG_S


def torch_edl(job: ModelJob, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EDL, *words], env=job.env, capture_output=True, text=True, timeout=HANG_S
    )


def go_down(job: ModelJob) -> None:
    """Ends all processes of a job, its client among them."""
    # Stopped first, so that none can do anything about the end of another.
    pids = [job.process.pid, *(p for role in ("master", "worker", "ps") for p in job.pids(role))]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    assert job.finish() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["journal", "checkpoint"])
def test_a_job_whose_processes_all_died_continues(
    start_job: Callable[..., ModelJob], durability: str
) -> None:
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--durability", durability]
    job = start_job(1000, *flags, *KEEP)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    running = torch_edl(job, "continue", job.name)
    assert (running.returncode, "it runs" in running.stderr) == (2, True)
    go_down(job)
    assert f"torch-edl continue {job.name}" in torch_edl(job, "status", job.name).stdout
    job.go_on()
    report = job.summary_file
    continued = torch_edl(job, "continue", job.name, "--summary", str(report))
    assert continued.returncode == 0, f"{continued.stdout}{continued.stderr}\n{job.report()}"
    job.check_counts()
    assert job.summary()["state"] == "finished"
    told = json.loads(torch_edl(job, "status", job.name, "--json").stdout)
    assert (told["rolled_back"]["times"] == 0) == (durability == "journal")
    over = torch_edl(job, "continue", job.name)
    assert (over.returncode, "it has finished" in over.stderr) == (2, True)


def kept(job: ModelJob) -> int:
    """Records that are done as the store has it, which is written before this file."""
    try:
        return int(json.loads((job.folder / "status.json").read_text())["records"]["done"])
    except OSError:
        return 0


def lose_tail(log: Path, share: float) -> None:
    """Cuts off a share of a segment that was not on the disk when the machine lost power."""
    os.truncate(log, int(log.stat().st_size * (1 - share)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_job_continues_though_journals_lost_their_tails(
    start_job: Callable[..., ModelJob], seed: int
) -> None:
    """The store knows of more than the servers have: what the servers have counts."""
    chance = random.Random(seed)
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--durability", "journal"]
    job = start_job(1000, *flags, delay_s=0.05)
    job.wait_for(lambda: kept(job) > 300)
    go_down(job)
    shards = sorted((job.folder / "journal").glob("*/model-1/shard-*"))
    for shard in shards if seed % 2 else shards[:1]:
        lose_tail(max(shard.glob("incarnation-*/*.log")), chance.uniform(0.5, 0.95))
    job.go_on()
    continued = torch_edl(job, "continue", job.name, "--summary", str(job.summary_file))
    assert continued.returncode == 0, f"{continued.stdout}{continued.stderr}\n{job.report()}"
    job.check_counts()
    assert "its machine lost power; they are trained again" in continued.stdout


@pytest.mark.slow
def test_a_job_that_failed_continues_from_its_journals(
    start_job: Callable[..., ModelJob],
) -> None:
    flags = ["--workers", "1", "--ps", "2", *TASKS, "--durability", "journal", "--no-shuffle"]
    model = Path(__file__).with_name("failing_model.py")
    job = start_job(1000, *flags, delay_s=0.05, model=model)
    job.wait_for(lambda: job.done() > 300)
    bad = job.gate.with_suffix(".bad")
    bad.touch()
    assert job.finish() == 1
    told = job.log.read_text()
    assert "these records are bad" in told
    assert f"torch-edl continue {job.name}" in told
    again = torch_edl(job, "continue", job.name)
    assert (again.returncode, "these records are bad" in again.stderr) == (1, True)
    bad.unlink()
    job.go_on()
    done = torch_edl(job, "continue", job.name, "--summary", str(job.summary_file))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{job.report()}"
    assert "restart from" not in done.stdout
    job.check_counts()
