"""Machines give notice before they are taken away: processes leave in time, and nothing is lost,
repeated or trained again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import KEEP, TASKS, ModelJob
from tests.faults.ring_jobs import RingJob
from tests.faults.test_ring_of_a_model_file import MODEL as RING_MODEL
from tests.http_server import HttpServer
from tests.object_server import require_packages

RECORDS = 2000
FLAGS = ["--workers", "2", "--ps", "2", *TASKS, "--no-shuffle"]


@pytest.fixture
def http(tmp_path: Path) -> Iterator[HttpServer]:
    require_packages(["aiohttp"])
    server = HttpServer(tmp_path)
    yield server
    server.kill()


def told(job: ModelJob | RingJob, pattern: str) -> str:
    """Wait for an event; its text."""

    def found() -> list[str]:
        return [e.text for e in job.status().events if re.fullmatch(pattern, e.text)]

    job.wait_for(found)
    return found()[0]


def trains(job: ModelJob) -> None:
    """Both workers train."""
    job.wait_for(
        lambda: sum(p.records > 0 for p in job.status().processes if p.role == "worker") == 2
    )


def costs_nothing(job: ModelJob | RingJob, name: str) -> None:
    text = told(job, f"{name} ended with exit code 0, as asked; preempted: left in .*")
    assert "0 of its records are trained again" in text
    took_s = re.search(r"left in ([\d.]+) s", text)
    assert took_s is not None
    assert float(took_s[1]) < 25


def test_a_file_for_a_worker(start_job: Callable[..., ModelJob], tmp_path: Path) -> None:
    notice = f"{tmp_path}/leave/{{name}}"
    job = start_job(RECORDS, *FLAGS, "--preemption-notice", notice, delay_s=0.2)
    trains(job)
    (tmp_path / "leave").mkdir()
    (tmp_path / "leave" / "worker-0").touch()
    told(job, rf"worker-0 is preempted \({tmp_path}/leave/worker-0 exists\): it returns its tasks")
    costs_nothing(job, "worker-0")
    job.wait_for(lambda: len(job.running("worker")) == 2)
    job.check(rolled_back=0)
    assert job.summary()["records"] == RECORDS


@pytest.mark.slow
def test_an_endpoint_for_a_member_of_a_ring(tmp_path: Path, http: HttpServer) -> None:
    flags = ["--preemption-notice", f"{http.url}/files/{{name}}"]
    with contextlib.closing(RingJob(tmp_path, RING_MODEL, *flags, delay_s=0.2)) as job:
        job.trains()
        (http.files / "worker-1").touch()
        costs_nothing(job, "worker-1")
        job.wait_for(lambda: job.rings()[-1:] == [2] and len(job.rings()) >= 3)
        job.check()
        assert job.rolled_back() == 0


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_an_endpoint_for_a_server(
    start_job: Callable[..., ModelJob], http: HttpServer, durability: str
) -> None:
    flags = ["--preemption-notice", f"{http.url}/files/{{name}}", "--durability", durability]
    job = start_job(RECORDS, *FLAGS, *flags, delay_s=0.1)
    trains(job)
    before = job.pids("ps")
    (http.files / "ps-0").touch()
    then = {"checkpoint": "the model moves to other servers"}
    told(
        job,
        rf"ps-0 is preempted \({http.url}/files/ps-0 answers 200\): "
        + then.get(durability, "another server takes its shard"),
    )
    ended = before if durability == "checkpoint" else before[:1]
    job.wait_for(lambda: not set(ended) & set(job.pids("ps")) and len(job.running("ps")) == 2)
    job.check(rolled_back=0)


@pytest.mark.slow
def test_a_notice_for_the_machine_of_all_processes_stops_the_job(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    """The job has a checkpoint of everything, from which another one continues."""
    notice = ["--preemption-notice", str(tmp_path / "leave")]
    job = start_job(RECORDS, *FLAGS, *KEEP, *notice, delay_s=0.1)
    trains(job)
    (tmp_path / "leave").touch()
    assert job.finish() == 1, job.report()  # as after `torch-edl stop`
    assert f"notice of preemption: {tmp_path}/leave exists" in job.log.read_text()
    done = job.summary()["records"]
    assert done > 0
    resumed = start_job(RECORDS, *FLAGS, *KEEP, "--resume", name="resumed")
    resumed.check(rolled_back=0)
    assert resumed.summary()["records"] == RECORDS
