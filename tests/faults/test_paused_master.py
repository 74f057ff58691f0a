"""A master is paused for longer than any process may be silent, and continues: nobody was silent to
anybody who listened, so no process is replaced and nothing is trained again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.test_master_kills import RECORDS, TASKS, require_same_processes

PAUSE_S = 6.0


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["checkpoint", "journal", "replica"])
def test_nobody_is_declared_lost(start_job: Callable[..., Any], durability: str) -> None:
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--heartbeat-timeout", "3"]
    job = start_job(RECORDS, *flags, "--durability", durability, delay_s=0.02)
    job.wait_for(lambda: job.done() > 100)
    before = set(job.pids("worker") + job.pids("ps"))
    (master,) = job.pids("master")
    os.kill(master, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    os.kill(master, signal.SIGCONT)
    done = job.done()
    job.wait_for(lambda: job.done() > min(done + 50, RECORDS - 100))
    require_same_processes(job, before)
    job.go_on()
    job.check()
