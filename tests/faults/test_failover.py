"""Servers are killed or paused while a job keeps journals: every record is counted exactly once,
and the model never returns to a checkpoint."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.conftest import TASKS

RECORDS = 1000
JOURNAL = ["--durability", "journal", *TASKS]
MODES = {
    "async": ["--workers", "2", "--ps", "2"],
    "in order": ["--workers", "2", "--ps", "1", "--staleness", "0"],
    "stale": ["--workers", "3", "--ps", "3", "--staleness", "2"],
    "quorum": ["--workers", "2", "--ps", "2", "--mode", "sync", "--grads-to-wait", "2"],
    "local steps": ["--workers", "2", "--ps", "3", "--local-steps", "4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("mode", MODES)
def test_servers_are_killed_at_random(start_job: Callable[..., Any], mode: str, seed: int) -> None:
    """The next one as soon as anybody has trained; now and then two at once."""
    chance = random.Random(f"{mode} {seed}")
    quorum = 2 if mode == "quorum" else 1
    job = start_job(RECORDS, *JOURNAL, *MODES[mode], "--seed", str(seed), quorum=quorum)
    for _ in range(4):
        # The data stop at the last record until go_on().
        more = min(job.done() + chance.randrange(RECORDS // 8), RECORDS - 200)
        job.wait_for(lambda n=more: job.done() > n and job.pids("ps"))
        for pid in chance.sample(pids := job.pids("ps"), min(len(pids), chance.choice([1, 1, 2]))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    job.check(rolled_back=0)


@pytest.mark.slow
def test_a_server_that_hangs_is_replaced_and_fenced(start_job: Callable[..., Any]) -> None:
    flags = [*JOURNAL, *MODES["async"], "--heartbeat-timeout", "2"]
    job = start_job(RECORDS, *flags)
    job.wait_for(lambda: job.done() > 200)
    victim = job.pids("ps")[0]
    os.kill(victim, signal.SIGSTOP)
    job.wait_for(lambda: any("declared lost" in e.text for e in job.status().events))
    job.check(rolled_back=0)
