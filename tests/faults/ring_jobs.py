"""Jobs of a model file that counts in a ring, and the means to hurt their members."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.faults.conftest import Job
from tests.place import EDL

_IMPORT_S = 170.0  # of TensorFlow, at most, on a busy machine


class RingJob(Job):
    """A job of one or two members, which train slowly until :meth:`go_on`: a new process imports
    for seconds, and must find the others training. The data stop at the last record.

    Args:
        model: as ``counting_ring_model.py``.
        delay_s: of a minibatch.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *flags: str,
        name: str = "ring",
        records: int = 4800,
        delay_s: float = 0.3,
    ) -> None:
        data, self._output = folder / "n.csv", folder / "output"
        self._records = records
        self._before = 0  # rings
        data.write_text("n\n" + "".join(f"{n}\n" for n in range(records)))
        command = [
            *EDL, "run", str(model), "--data", str(data), "--job-name", name, "--strategy",
            "allreduce", "--workers", "1:2", "--batch-size", "8", "--no-shuffle",
            "--output", str(self._output), "--heartbeat-timeout", "10", *flags,
            "--", str(records), str(self._gate(folder, name)), str(delay_s),
        ]  # fmt: skip
        super().__init__(folder, name, command, "torch_edl.training.worker")

    def rings(self) -> list[int]:
        """How many members each ring had so far."""
        return [int(size) for size in re.findall(r"ring \d+: (\d+) worker", self.log.read_text())]

    def hurt(self, number: int, *pids: int) -> None:
        """Sends a signal to members, and waits until they are gone."""
        self._before = len(self.rings())
        for pid in pids:
            os.kill(pid, number)
        self.wait_for(lambda: not set(pids) & set(self.pids("worker")))

    def trains(self) -> None:
        """Waits until a ring of two trains, which was formed after the last one was hurt."""
        self.wait_for(lambda: self.rings()[self._before :][-1:] == [2], _IMPORT_S)
        done = self.done()
        self.wait_for(lambda: self.done() > done + 48)

    def check(self) -> None:
        """The job ends well, and has counted every record exactly once."""
        self.end_well()
        counts = load_file(self._output / "model.safetensors")["records"]
        wrong = np.flatnonzero(counts != 1)
        assert np.array_equal(counts, np.ones(self._records)), (wrong, self.report())
