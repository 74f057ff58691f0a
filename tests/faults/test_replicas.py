"""Servers that keep copies for each other are killed: every record is counted exactly once, and the
model returns to a checkpoint only if a server and the one with its copy die together."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest

from tests.faults.conftest import TASKS, ModelJob

RECORDS = 1000
REPLICA = ["--durability", "replica", "--workers", "2", *TASKS]
MODES = {
    "async": [],
    "in order": ["--staleness", "0"],
    "quorum": ["--mode", "sync", "--grads-to-wait", "2"],
    "local steps": ["--local-steps", "4"],
}


def all_kept(job: ModelJob, servers: int) -> list[int]:
    """The pids of the servers; none, unless each has a copy of its shard at its peer."""
    running = [p for p in job.status().processes if p.role == "ps" and p.state == "running"]
    return [p.pid for p in running] if sum(p.kept for p in running) == servers else []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("servers", [2, 3, 5])
def test_one_server_at_a_time_is_killed(
    start_job: Callable[..., ModelJob], servers: int, mode: str
) -> None:
    chance = random.Random(f"{servers} {mode}")
    quorum = 2 if mode == "quorum" else 1
    flags = [*REPLICA, "--ps", str(servers), *MODES[mode]]
    job = start_job(RECORDS, *flags, quorum=quorum)
    killed: set[int] = set()

    def whole() -> list[int]:
        """The servers, once the master has noticed who was killed."""
        found = all_kept(job, servers)
        return found if killed.isdisjoint(found) else []

    for _ in range(3):
        more = min(job.done() + chance.randrange(RECORDS // 8), RECORDS - 200)
        job.wait_for(lambda n=more: job.done() > n and whole())
        victim = chance.choice(whole())
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    job.check(rolled_back=0)


@pytest.mark.parametrize("saved", [pytest.param(False, marks=pytest.mark.slow), True])
def test_both_servers_are_killed_at_once(start_job: Callable[..., ModelJob], saved: bool) -> None:
    """What they had is lost, the events say so, and all else is trained exactly once."""
    checkpoints = ["--checkpoint-dir", "DIR", "--checkpoint-every", "10"] if saved else []
    job = start_job(RECORDS, *REPLICA, "--ps", "2", *checkpoints)
    job.wait_for(
        lambda: job.done() > 200 and all_kept(job, 2) and (job.status().checkpoint or not saved)
    )
    for pid in all_kept(job, 2):
        os.kill(pid, signal.SIGKILL)
    job.wait_for(lambda: any("cannot restore shard" in e.text for e in job.status().events))
    job.check(rolled_back=1)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [2, 3])
def test_all_servers_are_asked_to_leave_at_once(
    start_job: Callable[..., ModelJob], servers: int
) -> None:
    """One after the other does, as soon as the others can do without it."""
    job = start_job(RECORDS, *REPLICA, "--ps", str(servers))
    job.wait_for(lambda: job.done() > 200 and all_kept(job, servers))
    before = all_kept(job, servers)
    for pid in before:
        os.kill(pid, signal.SIGTERM)
    job.wait_for(lambda: (now := all_kept(job, servers)) and not set(now) & set(before), 120)
    job.check(rolled_back=0)
