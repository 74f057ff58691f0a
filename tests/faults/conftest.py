"""Jobs as a user starts them, and the means to hurt them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

MODEL = Path(__file__).with_name("counting_model.py")


class Job:
    """A running `torch-edl run` of the counting model."""

    def __init__(self, folder: Path, name: str, flags: list[str], delay_s: float) -> None:
        self.folder = folder
        self.name = name
        self.output = folder / f"{name}-output"
        self.summary_file = folder / f"{name}.json"
        self.log = folder / f"{name}.log"
        self.env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home")}
        command = [
            sys.executable, "-m", "torch_edl.cli", "run", str(MODEL),
            "--data", str(folder / "data-*.parquet"), "--job-name", name,
            "--output", str(self.output), "--summary", str(self.summary_file),
            *(str(folder / "checkpoints") if f == "DIR" else f for f in flags),
            "--", str(delay_s),
        ]  # fmt: skip
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)

    def status(self) -> dict[str, Any] | None:
        """`torch-edl status --json`; None while there is none."""
        found = subprocess.run(
            [sys.executable, "-m", "torch_edl.cli", "status", self.name, "--json"],
            env=self.env, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        return json.loads(found.stdout) if found.returncode == 0 and found.stdout else None

    def scale(self, workers: str) -> None:
        """`torch-edl scale`."""
        subprocess.run(
            [sys.executable, "-m", "torch_edl.cli", "scale", self.name, "--workers", workers],
            env=self.env, check=True, timeout=30,
        )  # fmt: skip

    def pids(self, role: str) -> list[int]:
        """Processes of that role that live now, found without asking the job."""
        module = {"worker": "torch_edl.worker", "ps": "torch_edl.ps_server", "master": "master"}
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            line = process.info["cmdline"] or []
            home = (process.info["environ"] or {}).get("TORCH_EDL_HOME")
            if home == self.env["TORCH_EDL_HOME"] and module[role] in line[:4]:
                found.append(process.pid)
        return found

    def wait(self, timeout_s: float) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.log.read_text()[-4000:]}")

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        """Until it is true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"it did not come about:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def records_done(self) -> int:
        """Committed records, as the job says."""
        status = self.status()
        return status["records"]["done"] if status else 0

    def summary(self) -> dict[str, Any]:
        """What `--summary` wrote."""
        return json.loads(self.summary_file.read_text())  # type: ignore[no-any-return]

    def check_counts(self, records: int, epochs: int) -> None:
        """Every record was counted exactly once in every epoch, by dense and by rows."""
        total = load_file(self.output / "model.safetensors")["total"]
        rows = load_file(self.output / "embeddings" / "rows.safetensors")
        counts = dict(zip(rows["ids"].tolist(), rows["vectors"][:, 0].tolist(), strict=True))
        wrong = {n: counts.get(n) for n in range(records) if counts.get(n) != epochs}
        assert not wrong, f"{len(wrong)} records are not counted {epochs} times: {wrong}"
        assert total.tolist() == [records * epochs] * 3
        assert np.array_equal(rows["vectors"][:, 0], rows["vectors"][:, 1])


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``start_job(records, *flags, delay_s=0.0, name="count")``."""
    jobs: list[Job] = []

    def start(records: int, *flags: str, delay_s: float = 0.0, name: str = "count") -> Job:
        if not list(tmp_path.glob("data-*.parquet")):
            for part, numbers in enumerate(np.array_split(np.arange(records), 3)):
                pq.write_table(pa.table({"n": numbers}), tmp_path / f"data-{part}.parquet")
        jobs.append(Job(tmp_path, name, list(flags), delay_s))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        # Nothing outlives its job, whatever the test did to it.
        deadline = time.monotonic() + 15
        while left := [p for role in ("worker", "ps", "master") for p in job.pids(role)]:
            assert time.monotonic() < deadline, f"orphans {left}\n{job.log.read_text()[-2000:]}"
            time.sleep(0.05)
