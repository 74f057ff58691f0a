"""`torch-edl scale --ps` while a job trains: each record counts once, nothing is rolled back. For
storms of it see test_storms.py."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import KEEP, TASKS, ModelJob
from tests.place import EDL
from tests.waiting import HANG_S

# More than are trained, with the delay of a minibatch, while slow commands run.
RECORDS = 4000
# In order, so that the record at which the data stop comes last.
FLAGS = ["--workers", "2", "--ps", "2", *TASKS, "--no-shuffle"]
JOURNAL = ["--durability", "journal"]


def scale(job: ModelJob, *words: object) -> str:
    """`torch-edl scale`; what it says."""
    command = [*EDL, "scale", job.name, *map(str, words)]
    done = subprocess.run(command, env=job.env, capture_output=True, text=True, timeout=HANG_S)
    return done.stdout + done.stderr


def moved(job: ModelJob, servers: int) -> None:
    """Wait until this number of servers runs, and workers train on them."""
    job.wait_for(lambda: running(job) == servers and job.status().servers_wanted == servers)
    done = job.done()
    job.wait_for(lambda: job.done() > done or job.done() >= RECORDS - 64)


def running(job: ModelJob) -> int:
    states = [p.state for p in job.status().processes if p.role == "ps" and p.state != "exited"]
    return len(states) if set(states) == {"running"} else 0


def check(job: ModelJob) -> None:
    assert job.status().rolled_back.times == 0
    job.check()
    assert "restart from" not in job.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [[], JOURNAL, ["--durability", "replica"], KEEP, ["--local-steps", "4"]],
    ids=["async", "journal", "replica", "checkpoints", "local-steps"],
)
def test_servers_come_and_go(start_job: Callable[..., ModelJob], flags: list[str]) -> None:
    job = start_job(RECORDS, *FLAGS, *flags, delay_s=0.1)
    job.wait_for(lambda: job.done() > 50)
    for servers in (3, 2):
        before = job.status().servers_wanted
        said = scale(job, "--ps", servers)
        assert said == f"parameter servers wanted: {before} before, {servers} from now on\n"
        moved(job, servers)
    if flags == JOURNAL:
        job.wait_for(lambda: [f.name for f in job.folder.glob("journal/*/*")] == ["model-3"])
    check(job)
    told = [line for line in job.log.read_text().splitlines() if re.search("warning|error", line)]
    assert not told, "nothing happened that was not asked for"


@pytest.mark.parametrize(
    ("victim", "flags"),
    [
        pytest.param("master", [], id="master", marks=pytest.mark.slow),
        pytest.param("master", JOURNAL, id="master, journal", marks=pytest.mark.slow),
        pytest.param("ps", [*JOURNAL, "--workers", "1"], id="ps, journal"),
        pytest.param("ps", [], id="ps", marks=pytest.mark.slow),
    ],
)
def test_a_process_is_killed_in_the_middle_of_a_move(
    start_job: Callable[..., ModelJob], victim: str, flags: list[str]
) -> None:
    """Either the old servers continue, and another cut follows, or the new ones have this one."""
    job = start_job(RECORDS, *FLAGS, *flags, delay_s=0.1)
    job.wait_for(lambda: job.done() > 50)
    (process, *_) = job.pids(victim)
    scale(job, "--ps", 3)
    job.wait_for(lambda: list(job.folder.glob("final/*")))
    with contextlib.suppress(ProcessLookupError):  # a server that has just been replaced
        os.kill(process, signal.SIGKILL)
    moved(job, 3)
    if victim == "ps" and not flags:  # what a server loses that has no journal
        job.check()
    else:
        check(job)


@pytest.mark.slow
def test_many_moves_leave_nothing_on_the_disk(start_job: Callable[..., ModelJob]) -> None:
    job = start_job(3 * RECORDS, *FLAGS, *JOURNAL, delay_s=0.1)
    job.wait_for(lambda: job.done() > 50)
    for move in range(1, 11):
        servers = 2 + move % 2
        scale(job, "--ps", servers)
        job.wait_for(lambda n=servers: running(job) == n)
        job.wait_for(
            lambda move=move: (
                [folder.name for folder in job.folder.glob("journal/*/*")] == [f"model-{move + 1}"]
            )
        )
        job.wait_for(lambda: len(list(job.folder.glob("final/*"))) == 1)
    check(job)


@pytest.mark.slow
def test_a_stop_before_a_worker_has_met_the_new_servers_keeps_the_model(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    """The cut with which the model moved is a checkpoint."""
    job = start_job(RECORDS, *FLAGS, "--checkpoint-dir", "DIR", delay_s=0.1)
    job.wait_for(lambda: job.done() > 50)
    scale(job, "--ps", 3)
    job.wait_for(lambda: any((tmp_path / "checkpoints").glob("**/manifest.json")))
    workers = job.pids("worker")
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    job.wait_for(lambda: any("the model moves" in event.text for event in job.status().events))
    job.process.send_signal(signal.SIGTERM)
    job.wait_for(lambda: job.status().state == "stopping")
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    stopped(job)
    resume(start_job)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_stop_at_any_moment_of_a_move_keeps_the_model(
    start_job: Callable[..., ModelJob], seed: int
) -> None:
    chance = random.Random(seed)
    durability = chance.choice(["checkpoint", "journal", "replica"])
    flags = ["--checkpoint-dir", "DIR", "--durability", durability]
    job = start_job(RECORDS, *FLAGS, *flags, delay_s=0.05)
    job.wait_for(lambda: job.done() > 50)
    scale(job, "--ps", chance.choice([3, 4]))
    time.sleep(chance.uniform(0, 2))
    job.process.send_signal(signal.SIGTERM)
    stopped(job)
    resume(start_job)


def stopped(job: ModelJob) -> None:
    """The job has ended with a checkpoint of all that was trained."""
    assert job.finish() == 128 + signal.SIGTERM, job.report()
    assert "no last checkpoint" not in job.log.read_text()
    assert job.summary()["records"] > 50


def resume(start_job: Callable[..., ModelJob]) -> None:
    """Another job continues from the newest checkpoint, and has every record once."""
    job = start_job(RECORDS, *FLAGS, "--checkpoint-dir", "DIR", "--resume", name="resumed")
    job.check()
    assert "training continues from" in job.log.read_text()


@pytest.mark.slow
def test_a_server_that_is_asked_to_leave_takes_nothing_along(
    start_job: Callable[..., ModelJob],
) -> None:
    """Without a journal, and without a checkpoint."""
    job = start_job(RECORDS, *FLAGS, delay_s=0.1)
    job.wait_for(lambda: job.done() > 50)
    before = job.pids("ps")
    os.kill(before[0], signal.SIGTERM)
    job.wait_for(lambda: not set(before) & set(job.pids("ps")))
    moved(job, 2)
    check(job)
