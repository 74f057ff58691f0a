"""``torch-edl chaos`` on jobs that run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import MODEL, TASKS, ModelJob
from tests.place import EDL
from tests.schemas import require_valid
from tests.waiting import HANG_S, is_stopped

FLAGS = ["--workers", "2", "--ps", "2", *TASKS]
Start = Callable[..., ModelJob]


def chaos(job: ModelJob, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*EDL, "chaos", job.name, *words],
        env=job.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def events(job: ModelJob) -> list[str]:
    return [event.text for event in job.status().events]


@pytest.mark.slow
def test_what_it_did_is_told_and_judged(start_job: Start) -> None:
    """Two workers die together; the promise holds, and the job knows what happened to it."""
    job = start_job(1000, *FLAGS)
    job.wait_for(lambda: job.done() > 0)
    _ctrl_c_continues_what_is_paused(job)
    plan = job.log.with_name("storm.toml")
    plan.write_text('[[fault]]\nkill = "worker=2"\nat = "0.5s"\n')
    process = chaos(job, "--plan", str(plan), "--json")
    job.wait_for(lambda: any("the last fault is over" in text for text in events(job)))
    job.go_on()
    out, told = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, f"{out}{told}\n{job.report()}"
    verdict = json.loads(out)
    require_valid("chaos", verdict)
    assert verdict["held"]
    assert verdict["kills"] == {"worker": 2}
    assert verdict["replaced"]["worker"] >= 2
    assert verdict["rolled_back"] == {"times": 0, "records": 0}
    assert told.count("killed") == 2
    job.check()
    log = (job.folder / "events.jsonl").read_text()
    assert log.count(' killed"') == 2
    assert "the promise held" in log


def _ctrl_c_continues_what_is_paused(job: ModelJob) -> None:
    def stopped() -> int:
        return sum(is_stopped(pid) for pid in job.pids("worker"))

    process = chaos(job, "--pause", "worker=2:60s", "--every", "200ms", "--for", "60s")
    job.wait_for(lambda: stopped() == 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "2 worker" in out
    assert stopped() == 0


@pytest.mark.slow
def test_servers_that_keep_checkpoints_only(start_job: Start) -> None:
    """It says beforehand what that costs, and afterwards what it did cost."""
    job = start_job(1000, *FLAGS)
    job.wait_for(lambda: job.done() > 200)
    process = chaos(job, "--kill", "ps=1", "--every", "500ms", "--for", "500ms")
    job.wait_for(lambda: any("the last fault is over" in text for text in events(job)))
    job.go_on()
    out, told = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, f"{out}{told}\n{job.report()}"
    assert "warning: --durability checkpoint: each kill of a server restores all" in told
    assert "rolled back 1 times, " in out
    assert "the promise held" in out
    job.check()


@pytest.mark.slow
def test_jobs_that_cannot_be_hurt(start_job: Start, tmp_path: Path) -> None:
    """Unknown, over, or without such a process."""
    home = {**os.environ, "TORCH_EDL_HOME": str(tmp_path / "home")}

    def refused(job: str, role: str) -> str:
        words = [*EDL, "chaos", job, "--kill", f"{role}=1"]
        done = subprocess.run(words, env=home, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "no job on this machine" in refused("nobody", "ps")
    job = start_job(8, "--strategy", "local")
    job.wait_for(lambda: job.pids("worker") and job.status().strategy)
    assert "nobody: no such job" in refused("nobody", "ps")
    assert "--kill ps: the job has no parameter servers, its strategy is local" in refused(
        job.name, "ps"
    )
    job.check()
    assert "count: the job is over, it is finished" in refused(job.name, "worker")


@pytest.mark.slow
def test_a_feed_with_a_generator_of_its_own_breaks_the_promise(
    start_job: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails rather than end with records that were trained twice or never."""
    monkeypatch.setenv("EDL_TEST_SHUFFLE", "own")
    flags = [*FLAGS, "--records-per-task", "128"]
    job = start_job(1500, *flags, delay_s=0.03, model=MODEL.with_name("shuffling_model.py"))
    job.wait_for(lambda: job.done() > 100)
    process = chaos(job, "--kill", "worker=3", "--for", "4s", "--json")
    out, _ = process.communicate(timeout=HANG_S)
    job.go_on()
    assert job.finish() == 1, job.report()
    assert process.returncode == 1, out
    (problem,) = json.loads(out)["problems"]
    assert "numpy.random" in problem
    assert "(records " in problem
