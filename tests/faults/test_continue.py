"""A machine goes down with all processes of a job, and the job is continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.faults.conftest import EDL, ModelJob
from tests.waiting import HANG_S

TASKS = ["--batch-size", "8", "--records-per-task", "64"]


def torch_edl(job: ModelJob, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EDL, *words], env=job.env, capture_output=True, text=True, timeout=HANG_S
    )


@pytest.mark.parametrize(
    "durability", ["journal", pytest.param("checkpoint", marks=pytest.mark.slow)]
)
def test_a_job_whose_processes_all_died_continues(
    start_job: Callable[..., ModelJob], durability: str
) -> None:
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--durability", durability]
    flags += ["--checkpoint-dir", "DIR", "--checkpoint-every", "20"]
    job = start_job(1000, *flags)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    running = torch_edl(job, "continue", job.name)
    assert (running.returncode, "it runs" in running.stderr) == (2, True)
    # Stopped first, so that none can do anything about the end of another.
    pids = [job.process.pid, *(p for role in ("master", "worker", "ps") for p in job.pids(role))]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    assert job.finish() == -signal.SIGKILL
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
