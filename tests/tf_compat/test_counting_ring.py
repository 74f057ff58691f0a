"""Workers of TensorFlow in a ring count every record exactly once, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import EDL, Job
from tests.faults.test_master_kills import kill_master
from tests.tf_compat import installed

__all__ = ["installed"]

IMPORT_S = 170.0  # of TensorFlow, at most, on a busy machine
RING = Path(__file__).with_name("counting_ring_tf.py")


def has_tensorflow(pid: int) -> bool:
    return any("tensorflow" in each.path for each in psutil.Process(pid).memory_maps())


class RingJob(Job):
    """A job of two members, which take their time until :meth:`go_on`: a process that comes imports
    for seconds, and finds the others training."""

    def __init__(self, folder: Path, *flags: str, name: str = "ring", records: int = 4800) -> None:
        data, self._output = folder / "n.csv", folder / "output"
        self._records = records
        self._before = 0  # rings
        data.write_text("n\n" + "".join(f"{n}\n" for n in range(records)))
        command = [
            *EDL, "run", str(RING), "--data", str(data), "--job-name", name, "--strategy",
            "allreduce", "--workers", "1:2", "--spares", "0", "--batch-size", "8", "--no-shuffle",
            "--output", str(self._output), "--heartbeat-timeout", "10", *flags,
            "--", str(records), str(self._gate(folder, name)), "0.3",
        ]  # fmt: skip
        super().__init__(folder, name, command, "torch_edl.worker")

    def rings(self) -> list[int]:
        """How many members each ring had so far."""
        return [int(size) for size in re.findall(r"ring \d+: (\d+) worker", self.log.read_text())]

    def hurt(self, number: int, *pids: int) -> None:
        """Sends a signal to members."""
        self._before = len(self.rings())
        for pid in pids:
            os.kill(pid, number)
        self.wait_for(lambda: not set(pids) & set(self.pids("worker")))

    def trains(self) -> None:
        """Waits until a ring of two trains, which was formed after the last one was hurt."""
        self.wait_for(lambda: self.rings()[self._before :][-1:] == [2], IMPORT_S)
        done = self.done()
        self.wait_for(lambda: self.done() > done + 48)

    def check(self) -> None:
        """The job ends well, and has counted every record exactly once."""
        self.go_on()
        assert self.finish() == 0, self.report()
        counts = load_file(self._output / "model.safetensors")["records"]
        wrong = np.flatnonzero(counts != 1)
        assert np.array_equal(counts, np.ones(self._records)), (wrong, self.report())


def test_a_member_of_a_ring_is_killed(tmp_path: Path) -> None:
    with contextlib.closing(RingJob(tmp_path)) as job:
        job.trains()
        job.hurt(signal.SIGKILL, job.pids("worker")[0])
        job.trains()
        assert all(map(has_tensorflow, job.pids("worker")))
        job.check()
    # The last members: what they had imported.
    found = [json.loads(path.read_text()) for path in tmp_path.glob("imported-*.json")]
    assert found
    for modules in found:
        packages = {name.partition(".")[0] for name in modules}
        assert {"tensorflow", "tf_compat", "torch_edl"} <= packages
        assert not packages & {"torch", "torchvision", "master"}


@pytest.mark.slow
def test_members_of_a_ring_are_killed_again_and_again_with_their_master(tmp_path: Path) -> None:
    """One by one, one that is asked to leave, the master, and all of them at once."""
    flags = ["--checkpoint-every", "20", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    with contextlib.closing(RingJob(tmp_path, *flags, records=6400)) as job:
        for number in (0, 1):
            job.trains()
            job.hurt(signal.SIGKILL, job.pids("worker")[number])
        job.trains()
        kill_master(job)
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
    with contextlib.closing(RingJob(tmp_path, *flags)) as job:
        job.wait_for(lambda: job.status().checkpoint)
        job.trains()
        done = job.done()
        job.process.send_signal(signal.SIGINT)
        job.finish()
    with contextlib.closing(RingJob(tmp_path, *flags, "--resume", name="again")) as job:
        job.wait_for(lambda: job.done() > done)
        assert "training continues from" in job.report()
        job.check()
