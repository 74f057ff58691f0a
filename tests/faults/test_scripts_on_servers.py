"""Processes of a script's job on parameter servers are killed; each record counts once all the
same.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import KEEP, Job
from tests.place import EDL
from tests.waiting import HANG_S

SCRIPT = Path(__file__).with_name("counting_on_servers.py")
RECORDS = 1000
EPOCHS = 2
PAUSE_S = 8.0


class ScriptJob(Job):
    """A job of the counting script; its data stop near the end of the first epoch."""

    def __init__(self, folder: Path, name: str, flags: list[str], delay_s: float) -> None:
        self.told = folder / f"{name}-told"
        self.told.mkdir()
        command = [
            *EDL, "run", "--job-name", name, *flags, str(SCRIPT), str(self.told),
            str(self._gate(folder, name)), "--records", str(RECORDS), "--epochs", str(EPOCHS),
            "--delay", str(delay_s),
        ]  # fmt: skip
        super().__init__(folder, name, command, str(SCRIPT))

    def check(self, workers: int) -> None:
        """Each record counts once in each epoch, as every worker sees it at the end."""
        self.end_well()
        ends = [json.loads(file.read_text()) for file in self.told.glob("counts-*.json")]
        assert sorted(end["rank"] for end in ends) == list(range(workers)), self.report()
        for end in ends:
            assert not end["wrong"], f"{end['wrong']}\n{self.report()}"
            assert end["total"] == [EPOCHS * RECORDS] * 3


@pytest.fixture
def start(tmp_path: Path, jobs: contextlib.ExitStack) -> Callable[..., ScriptJob]:
    """``start(*flags)``; a flag DIR is a folder for checkpoints."""

    def start_job(*flags: str, delay_s: float = 0.004, name: str = "count") -> ScriptJob:
        given = [str(tmp_path / "checkpoints") if flag == "DIR" else flag for flag in flags]
        return jobs.enter_context(contextlib.closing(ScriptJob(tmp_path, name, given, delay_s)))

    return start_job


@pytest.mark.slow
def test_a_worker_and_a_server_are_killed(start: Callable[..., ScriptJob]) -> None:
    """The tasks of the one go to others; all go back to the checkpoint with the other."""
    job = start("--ps", "2", "--workers", "2", *KEEP)
    job.wait_for(lambda: job.done() > 100)
    job.kill("worker")
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    job.kill("ps")
    job.check(2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_workers_are_killed_at_random(start: Callable[..., ScriptJob], seed: int) -> None:
    chance = random.Random(seed)
    job = start("--strategy", "ps", "--workers", "3", delay_s=0.01)
    for _ in range(4):
        more = job.done() + chance.randrange(RECORDS // 8)
        job.wait_for(lambda n=more: job.done() > n)
        job.kill("worker")
    job.check(3)


@pytest.mark.slow
def test_the_node_pauses_for_longer_than_it_may_be_silent(
    start: Callable[..., ScriptJob],
) -> None:
    """Its workers are heard, so nobody is lost."""
    job = start("--ps", "2", "--workers", "2", "--heartbeat-timeout", "4")
    job.wait_for(lambda: job.done() > 100, HANG_S)
    before = job.pids("worker")
    job.process.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    job.process.send_signal(signal.SIGCONT)
    job.wait_for(lambda: job.status().state == "running")
    assert job.pids("worker") == before
    job.check(2)


@pytest.mark.slow
def test_a_server_is_killed_without_checkpoints(start: Callable[..., ScriptJob]) -> None:
    """Everything begins again, and counts once."""
    job = start("--ps", "2", "--workers", "3")
    job.wait_for(lambda: job.done() > RECORDS // 2)
    job.kill("ps")
    # Not by the records done: these pass the half again within one interval of the heartbeats.
    job.wait_for(lambda: "restart from the beginning" in job.log.read_text())
    job.check(3)


@pytest.mark.slow
def test_the_master_is_killed(start: Callable[..., ScriptJob]) -> None:
    """Servers and workers continue with the next one, and nothing is rolled back."""
    job = start("--ps", "2", "--workers", "2", *KEEP)
    job.wait_for(lambda: job.done() > 100)
    job.kill("master")
    job.wait_for(lambda: "the master was restarted: 2 workers continue" in job.log.read_text())
    job.check(2)
    assert job.status().rolled_back.times == 0


@pytest.mark.slow
def test_a_stopped_job_goes_on_with_other_servers_and_workers(
    start: Callable[..., ScriptJob],
) -> None:
    first = start("--ps", "2", "--workers", "2", *KEEP, name="first")
    first.wait_for(lambda: first.status().checkpoint)
    first.process.send_signal(signal.SIGINT)
    assert first.finish(60) == 130
    second = start("--strategy", "ps", "--workers", "1", *KEEP, "--resume", name="second")
    second.check(1)
