"""``torch-edl audit`` after storms, for each kind of job, and on folders that were changed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import EDL, KEEP, TASKS, Job, ModelJob, send
from tests.faults.storms import storm
from tests.schemas import require_valid
from tests.waiting import HANG_S


def audit(job: Job) -> tuple[int, dict[str, Any]]:
    """Run ``torch-edl audit JOB --json``."""
    words = [*EDL, "audit", job.name, "--json", "--tasks"]
    done = subprocess.run(words, env=job.env, stdout=subprocess.PIPE, check=False, timeout=HANG_S)
    report: dict[str, Any] = json.loads(done.stdout)
    require_valid("audit", report)
    return done.returncode, report


def _check(job: ModelJob, records: int) -> dict[str, Any]:
    code, report = audit(job)
    assert (code, report["verdict"]) == (0, "holds"), report
    assert sum(epoch["records_done"] for epoch in report["epochs"]) == records
    assert sum(task["end"] - task["start"] for task in report["tasks"]) == records
    return report


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (0, "mixed"),
        pytest.param(6, "masters", marks=pytest.mark.slow),
        pytest.param(4, "together", marks=pytest.mark.slow),
    ],
)
def test_a_storm_then_changes_of_the_folder(
    start_job: Callable[..., ModelJob], seed: int, kind: str
) -> None:
    what = storm(seed, kind, "journal", 4.0)
    job = start_job(1000, *what.flags, delay_s=0.04, quorum=what.quorum)
    plan = job.log.with_name("storm.toml")
    plan.write_text(what.plan)
    job.wait_for(lambda: job.done() > 0, 120)
    with job.storm("--plan", str(plan)):
        pass
    job.check()
    _check(job, 1000)
    file = job.folder / "tasks.jsonl"
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    ranged = whole.replace('["done", ', '["done", 1', 1)
    changes = {
        "a line is removed": ("".join(lines[:1] + lines[2:]), "line 2"),
        "a worker is changed": (ranged, "line "),
        "the file is cut within a line": (whole[:-20], f"line {len(lines)}"),
        "the last line is removed": ("".join(lines[:-1]), f"line {len(lines)}"),
        "the file is empty": ("", "line 1"),
    }
    for change, (text, place) in changes.items():
        file.write_text(text)
        code, report = audit(job)
        assert code == 1, change
        assert any(place in problem for problem in report["problems"]), (change, report)
    file.unlink()
    assert audit(job)[0] == 1


@pytest.mark.slow
def test_a_dead_job_whose_store_was_replaced(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    job = start_job(1000, "--ps", "1", "--workers", "2", *TASKS, delay_s=0.04)
    state, kept = job.folder / "state.sqlite", tmp_path / "older"
    job.wait_for(lambda: job.done() > 50)
    kept.mkdir()
    for file in job.folder.glob("state.sqlite*"):
        shutil.copy(file, kept)
    job.wait_for(lambda: job.done() > 300)
    job.process.kill()
    job.kill("master")
    for pid in job.processes():
        send(pid, signal.SIGKILL)
    code, report = audit(job)
    assert (code, report["verdict"]) == (0, "incomplete"), report
    for file in job.folder.glob("state.sqlite*"):
        file.unlink()
    for file in kept.iterdir():
        shutil.copy(file, job.folder)
    code, report = audit(job)
    assert code == 1
    assert "older than the file" in report["problems"][0], (report, state)


@pytest.mark.slow
def test_a_stopped_job_is_incomplete_and_resumes(start_job: Callable[..., ModelJob]) -> None:
    first = start_job(1000, "--ps", "2", "--no-shuffle", *TASKS, *KEEP, name="first")
    first.wait_for(lambda: first.done() > 300 and bool(first.status().checkpoint))
    first.kill("worker")
    first.wait_for(lambda: "worker lost" in (first.folder / "tasks.jsonl").read_text())
    first.process.send_signal(signal.SIGINT)
    assert first.finish(20) == 130
    code, report = audit(first)
    assert (code, report["verdict"]) == (0, "incomplete"), report
    assert any("worker lost" in epoch["returned"] for epoch in report["epochs"])
    second = start_job(1000, "--ps", "3", "--no-shuffle", *TASKS, *KEEP, "--resume", name="second")
    second.check()
    report = _check(second, 1000)
    assert report["restores"] == 0
    assert "resumed the progress of an earlier job" in report["notes"][0]
