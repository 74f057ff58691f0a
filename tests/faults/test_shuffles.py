"""Workers are killed whose ``feed`` shuffles the records of a task."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import EDL, ModelJob
from tests.waiting import HANG_S

MODEL = Path(__file__).with_name("shuffling_model.py")
FLAGS = ["--workers", "2", "--ps", "2", "--batch-size", "8", "--records-per-task", "128"]
KILLS = ["--kill", "worker=3", "--for", "4s"]


@pytest.mark.slow
def test_every_record_counts_once(start_job: Callable[..., ModelJob]) -> None:
    """The generators of Python, NumPy and torch are seeded for each task."""
    job = start_job(1500, *FLAGS, delay_s=0.03, model=MODEL)
    job.wait_for(lambda: job.done() > 0)
    with job.storm(*KILLS) as storming:
        pass
    assert storming.verdict["kills"]["worker"] > 1
    job.check()


@pytest.mark.slow
def test_a_generator_of_its_own_is_an_error(
    start_job: Callable[..., ModelJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails rather than end with records that were trained twice or never."""
    monkeypatch.setenv("EDL_TEST_SHUFFLE", "own")
    job = start_job(1500, *FLAGS, delay_s=0.03, model=MODEL)
    job.wait_for(lambda: job.done() > 100)
    words = [*EDL, "chaos", job.name, *KILLS, "--json"]
    done = subprocess.run(words, env=job.env, capture_output=True, text=True, timeout=HANG_S)
    job.go_on()
    assert job.finish() == 1, job.report()
    assert done.returncode == 1, done.stdout
    (problem,) = json.loads(done.stdout)["problems"]
    assert "numpy.random" in problem
    assert "(records " in problem
