"""The processes of a model file's ring are killed, or asked to leave: every record counts once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import EDL, Job
from tests.faults.test_master_kills import kill_master

# Enough for a ring to train on while its master is started again, twice.
RECORDS = 4800
PAUSE_S = 15.0  # more than the timeout of heartbeats
MODEL = Path(__file__).with_name("counting_ring_model.py")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Job]:
    """Two members; the data stop at the last record."""
    data, output = tmp_path / "n.csv", tmp_path / "output"
    data.write_text("n\n" + "".join(f"{n}\n" for n in range(RECORDS)))
    command = [
        *EDL, "run", str(MODEL), "--data", str(data), "--job-name", "ring", "--strategy",
        "allreduce", "--workers", "1:2", "--spares", "0", "--batch-size", "8",
        "--no-shuffle", "--output", str(output), "--heartbeat-timeout", "10", "--", str(RECORDS),
        str(tmp_path / "ring-goes-on"), "0.03",
    ]  # fmt: skip
    with contextlib.closing(Job(tmp_path, "ring", command, "torch_edl.worker")) as job:
        yield job


def check(job: Job, tmp_path: Path) -> None:
    job.go_on()
    assert job.finish() == 0, job.report()
    counts = load_file(tmp_path / "output" / "model.safetensors")["records"]
    assert np.array_equal(counts, np.ones(RECORDS)), (np.flatnonzero(counts != 1), job.report())


def trains(job: Job, members: int) -> None:
    """Waits until a ring of so many trains."""
    job.wait_for(lambda: len(job.pids("worker")) == members)
    done = job.done()
    job.wait_for(lambda: job.done() > done + 64)


def test_the_master_is_killed(ring: Job, tmp_path: Path) -> None:
    """Its members train on without it, and no other process is needed."""
    trains(ring, 2)
    before = set(ring.pids("worker"))
    for _ in range(2):
        kill_master(ring)
        done = ring.done()
        ring.wait_for(lambda n=done: ring.done() > n)
    assert set(ring.pids("worker")) == before, ring.report()
    check(ring, tmp_path)


@pytest.mark.slow
def test_the_master_is_paused(ring: Job, tmp_path: Path) -> None:
    """For longer than members may be silent: they wait for its word, and no model is lost."""
    trains(ring, 2)
    before = set(ring.pids("worker"))
    (master,) = ring.pids("master")
    os.kill(master, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    os.kill(master, signal.SIGCONT)
    trains(ring, 2)
    assert set(ring.pids("worker")) == before, ring.report()
    assert ring.status().rollbacks == 0, ring.report()
    check(ring, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("recovering", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_member_is_asked_to_leave(ring: Job, tmp_path: Path, recovering: bool) -> None:
    """In a step, or while the others form the ring without a member that has died."""
    trains(ring, 2)
    first, second = ring.pids("worker")
    if recovering:
        os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGTERM)
    ring.wait_for(lambda: second not in ring.pids("worker"))
    trains(ring, 2)
    check(ring, tmp_path)
