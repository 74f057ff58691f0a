"""Tables whose rows are on a disk: every record counts once, whatever is killed, and a full disk
makes the job wait."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.table_storage import GROUPS, limited
from tests.disk_folder import local_disk
from tests.faults.conftest import MODEL, TASKS, ModelJob
from tests.faults.storms import storm
from tests.waiting import HANG_S

KINDS = [
    ("servers", "journal"),
    ("scaling", "journal"),
    ("mixed", "replica"),
    ("again", "journal"),
    ("scaling", "replica"),
    ("workers", "checkpoint"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    return local_disk(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of sixteen megabytes."""
    image, disk = tmp_path / "image", tmp_path / "small"
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    disk.mkdir()
    script = 'mkfs.ext4 -q "$0" && mount -o loop "$0" "$1"'
    if subprocess.run(["sh", "-c", script, image, disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def on_disk(job: ModelJob, disk: Path) -> int:
    """Number of servers with a file in the folder; a file has no name."""
    mapped = f"{disk}/.torch-edl-table-"
    return sum(mapped in Path(f"/proc/{pid}/maps").read_text() for pid in job.pids("ps"))


def test_servers_are_killed(start_job: Callable[..., ModelJob], disk: Path) -> None:
    job = start_job(
        1000, "--durability", "journal", *TASKS, "--workers", "2", "--ps", "2",
        "--table-storage", f"disk:{disk}", "--storage-dtype", "int8",
    )  # fmt: skip
    job.wait_for(lambda: job.done() > 200)
    assert on_disk(job, disk) == 2
    for _ in range(2):
        before = job.done()
        job.kill("ps")
        job.wait_for(lambda n=before: job.done() > n + 50)
    # Records from before the death may be reported after it.
    job.wait_for(lambda: on_disk(job, disk) == 2)
    assert list(disk.iterdir()) == []
    job.check(rolled_back=0)


@pytest.mark.slow
def test_a_full_disk_makes_the_job_wait(
    start_job: Callable[..., ModelJob], small_disk: Path
) -> None:
    def problems() -> list[str]:
        return [p.problem for p in job.status().processes if p.problem]

    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(16 << 20))
    job = start_job(
        1000, "--durability", "journal", *TASKS, "--workers", "1", "--ps", "2",
        "--table-storage", f"disk:{small_disk}",
    )  # fmt: skip
    job.wait_for(problems)  # another server may have had room for what came
    expected = f"table rows: disk:{small_disk} has no room for more rows: No space left on device"
    assert problems()[0] == expected
    done = job.done()
    ballast.unlink()
    job.wait_for(lambda: not problems() and job.done() > done)
    job.check(rolled_back=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_servers_of_a_table_three_times_their_memory_are_killed(
    start_job: Callable[..., ModelJob], disk: Path
) -> None:
    # Rows of 2,460 MB, and 35 MB of index and metadata. The server needs 550 MB besides, for parts
    # of its snapshots and segments of its journal.
    records, limit = 600_000, 750 << 20
    if os.getuid() or not GROUPS.is_dir():
        pytest.skip("needs root and a memory controller of cgroup v1")
    job = start_job(
        records, "--durability", "journal", "--batch-size", "256", "--workers", "2", "--ps", "1",
        "--epochs", "2", "--no-shuffle", "--table-storage", f"disk:{disk}",
        model=MODEL.with_name("wide_counting_model.py"),
    )  # fmt: skip
    ended = threading.Event()
    with limited(limit) as join:

        def limit_servers() -> None:
            while not ended.wait(0.05):
                for pid in job.pids("ps"):
                    with contextlib.suppress(ProcessLookupError):
                        join(pid)

        with ThreadPoolExecutor(1) as threads:
            limiting = threads.submit(limit_servers)
            try:
                for at in (0.9, 1.5):  # epochs
                    if at > 1:
                        job.go_on()
                    job.wait_for(lambda n=at * records: job.done() > n, 2 * HANG_S)
                    job.kill("ps")
                assert job.finish(4 * HANG_S) == 0, job.report()
            finally:
                ended.set()
            limiting.result()
    assert job.rolled_back() == 0
    rows = load_file(job.output / "embeddings" / "rows.safetensors")
    assert (np.sort(rows["ids"]) == np.arange(records)).all()
    assert (rows["vectors"] == 2).all()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 106))
def test_every_record_counts_once(
    start_job: Callable[..., ModelJob], disk: Path, seed: int
) -> None:
    for_s = 10.0
    what = storm(seed, *KINDS[seed - 100], for_s)
    flags = [*what.flags, "--table-storage", f"disk:{disk}"]
    job = start_job(2400, *flags, delay_s=0.04, quorum=what.quorum)
    plan = job.log.with_name("storm.toml")
    plan.write_text(what.plan)
    job.wait_for(lambda: job.done() > 0, 120)
    with job.storm("--plan", str(plan)) as storming:
        began = time.monotonic()
        for after_s, option, number in what.scales:
            job.wait_for(lambda s=after_s: time.monotonic() - began > s)
            job.scale(option, number)
    assert storming.verdict["kills"]
    assert storming.verdict["rolled_back"]["times"] == 0
    job.check()
    assert list(disk.iterdir()) == []
