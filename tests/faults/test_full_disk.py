"""The disk under the journals is full: the job waits, says why, and goes on when there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import TASKS

RECORDS = 1500
FLAGS = ["--durability", "journal", *TASKS, "--workers", "1", "--ps", "2", "--no-shuffle"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def problems(job: Any) -> list[str]:
    return [p.problem for p in job.status().processes if p.problem]


@pytest.mark.slow
def test_a_job_waits_for_room_and_loses_nothing(
    start_job: Callable[..., Any], small_disk: Path
) -> None:
    job = start_job(RECORDS, *FLAGS, "--journal-dir", str(small_disk), delay_s=0.1)
    job.wait_for(lambda: job.done() > 200)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(8 << 20))
    job.wait_for(lambda: problems(job))  # another server may have had room for what came
    assert problems(job)[0].startswith("journal: No space left on device: ")
    # A server that dies meanwhile, and a master, change nothing.
    job.kill("ps", 2)
    job.kill("master")
    job.wait_for(lambda: problems(job))
    done = job.done()
    ballast.unlink()
    job.wait_for(lambda: not problems(job) and job.done() > done)
    texts = [event.text for event in job.status().events]
    assert any("accepts pushes again" in text for text in texts), texts
    job.check()
    said = job.log.read_text()
    assert "journal: No space left on device" in said
    assert "restart from" not in said
    assert list(small_disk.iterdir()) == []
