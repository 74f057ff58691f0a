"""Workers of TensorFlow in a ring count every record exactly once, whoever is killed."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil
import pytest

from tests.faults.ring_jobs import RingJob
from tests.tf_compat.installed import check_imports

RING = Path(__file__).with_name("counting_ring_tf.py")


def has_tensorflow(pid: int) -> bool:
    return any("tensorflow" in each.path for each in psutil.Process(pid).memory_maps())


@pytest.mark.slow
def test_a_member_of_a_ring_is_killed(tmp_path: Path) -> None:
    with contextlib.closing(RingJob(tmp_path, RING)) as job:
        job.trains()
        job.hurt(signal.SIGKILL, job.pids("worker")[0])
        job.trains()
        assert all(map(has_tensorflow, job.pids("worker")))
        job.check()
    check_imports(tmp_path)


@pytest.mark.slow
def test_members_of_a_ring_are_killed_again_and_again_with_their_master(tmp_path: Path) -> None:
    """One by one, one that is asked to leave, the master, and all of them at once."""
    flags = ["--checkpoint-every", "20", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    with contextlib.closing(RingJob(tmp_path, RING, *flags, records=6400)) as job:
        for number in (0, 1):
            job.trains()
            job.hurt(signal.SIGKILL, job.pids("worker")[number])
        job.trains()
        job.kill_master()
        job.trains()
        job.hurt(signal.SIGTERM, job.pids("worker")[0])
        job.trains()
        job.wait_for(lambda: job.status().checkpoint)
        job.hurt(signal.SIGKILL, *job.pids("worker"))
        job.trains()
        job.check()


@pytest.mark.slow
def test_a_ring_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    flags = ["--checkpoint-every", "20", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    with contextlib.closing(RingJob(tmp_path, RING, *flags)) as job:
        job.wait_for(lambda: job.status().checkpoint)
        job.trains()
        done = job.done()
        job.process.send_signal(signal.SIGINT)
        job.finish()
    with contextlib.closing(RingJob(tmp_path, RING, *flags, "--resume", name="again")) as job:
        job.wait_for(lambda: job.done() > done)
        assert "training continues from" in job.report()
        job.check()
