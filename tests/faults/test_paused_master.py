"""A master is paused for longer than any process may be silent, and continues: nobody was silent to
anybody who listened, so no process is replaced and nothing is trained again. Others are killed and
paused meanwhile: every record counts once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.test_master_kills import RECORDS, TASKS

PAUSE_S = 6.0


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["checkpoint", "journal", "replica"])
def test_nobody_is_declared_lost(start_job: Callable[..., Any], durability: str) -> None:
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--heartbeat-timeout", "3"]
    job = start_job(RECORDS, *flags, "--durability", durability, delay_s=0.02)
    job.wait_for(lambda: job.done() > 100)
    before = set(job.pids("worker") + job.pids("ps"))
    job.pause_master(PAUSE_S)
    done = job.done()
    job.wait_for(lambda: job.done() > min(done + 50, RECORDS - 100))
    job.require_same_processes(before)
    job.check()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["journal", "replica"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_two_at_once(start_job: Callable[..., Any], durability: str, seed: int) -> None:
    """Masters, servers and workers are killed, or paused for shorter or longer than they may be
    silent, while others are: only with replicas may that lose the model, which has checkpoints."""
    chance = random.Random(f"{durability} {seed}")
    flags = ["--workers", "3", "--ps", "2", *TASKS, "--heartbeat-timeout", "4"]
    flags += ["--durability", durability, "--checkpoint-every", "40", "--checkpoint-dir", "DIR"]
    job = start_job(4 * RECORDS, *flags, "--staleness", chance.choice("02"))
    job.wait_for(lambda: job.done() > 100)
    wakes: list[threading.Timer] = []
    for _ in range(9):
        role = chance.choice(["worker", "ps", "master"])
        hurt, pause_s = chance.choice([signal.SIGKILL, signal.SIGSTOP]), chance.uniform(0.3, 7)
        if pids := job.pids(role):
            pid = chance.choice(pids)
            send(pid, hurt)
            if hurt == signal.SIGSTOP:
                wakes.append(threading.Timer(pause_s, send, (pid, signal.SIGCONT)))
                wakes[-1].start()
        time.sleep(chance.choice([0.05, 0.5, 1.5, 4]))
    for wake in wakes:
        wake.join()
    job.check(rolled_back=0 if durability == "journal" else None)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process, unless that has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
