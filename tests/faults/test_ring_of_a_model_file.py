"""The processes of a model file's ring are killed, or asked to leave: every record counts once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.ring_jobs import RingJob

PAUSE_S = 15.0  # more than the timeout of heartbeats
MODEL = Path(__file__).with_name("counting_ring_model.py")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingJob]:
    with contextlib.closing(RingJob(tmp_path, MODEL, delay_s=0.2)) as job:
        yield job


@pytest.mark.slow
def test_the_master_is_killed(ring: RingJob) -> None:
    """Its members train on without it, and no other process is needed."""
    ring.trains()
    before = set(ring.pids("worker"))
    for _ in range(2):
        ring.kill_master()
        done = ring.done()
        ring.wait_for(lambda n=done: ring.done() > n)
    assert set(ring.pids("worker")) == before, ring.report()
    ring.check()


@pytest.mark.slow
def test_the_master_is_paused(ring: RingJob) -> None:
    """For longer than members may be silent: they wait for its word, and no model is lost."""
    ring.trains()
    before = set(ring.pids("worker"))
    ring.pause_master(PAUSE_S)
    ring.trains()
    ring.require_same_processes(before)
    ring.check()


@pytest.mark.slow
@pytest.mark.parametrize("recovering", [False, True])
def test_a_member_is_asked_to_leave(ring: RingJob, recovering: bool) -> None:
    """In a step, or while the others form the ring without a member that has died."""
    ring.trains()
    first, second = ring.pids("worker")
    if recovering:
        os.kill(first, signal.SIGKILL)
    ring.hurt(signal.SIGTERM, second)
    ring.trains()
    ring.check()
