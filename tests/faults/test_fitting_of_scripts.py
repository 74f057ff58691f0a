"""Processes of a script are killed while its preprocessing is fitted; it is exact all the same."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import EDL, Job
from torch_edl.checkpoint import layout
from torch_edl.checkpointing import PREPROCESSING_FILE
from torch_edl.preprocessing import Columns, column

SCRIPT = Path(__file__).with_name("fitted_script.py")
RECORDS = 1000


class FittingJob(Job):
    """Of the script; its pass waits at the last record."""

    def __init__(self, folder: Path, name: str, flags: list[str]) -> None:
        self.told = folder / f"{name}-told"
        self.told.mkdir()
        self.checkpoints, self.output = folder / "checkpoints", folder / f"{name}-output"
        command = [
            *EDL, "run", "--job-name", name, "--workers", "2", "--output", str(self.output),
            "--checkpoint-dir", str(self.checkpoints), *flags, str(SCRIPT), str(self.told),
            str(self._gate(folder, name)), str(folder / "n.parquet"), str(RECORDS - 1),
        ]  # fmt: skip
        super().__init__(folder, name, command, str(SCRIPT))

    def waits(self) -> set[int]:
        return {int(file.name.partition("-")[2]) for file in self.told.glob("waits-*")}

    def check(self, expected: bytes) -> None:
        assert self.finish() == 0, self.report()
        told = [file.read_bytes() for file in self.told.glob("fitted-*")]
        newest = layout.newest(self.checkpoints)
        assert newest is not None
        assert PREPROCESSING_FILE in layout.read(newest).files
        kept = [(folder / PREPROCESSING_FILE).read_bytes() for folder in (newest, self.output)]
        assert len(told) == 2
        assert {*told, *kept} == {expected}, self.report()


@pytest.fixture
def start(tmp_path: Path, jobs: contextlib.ExitStack) -> Callable[..., FittingJob]:
    pq.write_table(pa.table({"n": range(RECORDS)}), tmp_path / "n.parquet", row_group_size=100)

    def start_job(name: str, *flags: str) -> FittingJob:
        return jobs.enter_context(contextlib.closing(FittingJob(tmp_path, name, list(flags))))

    return start_job


def whole() -> bytes:
    """What one pass over all records gives."""
    numbers = range(RECORDS)
    columns = Columns(id=column("word").vocabulary(40), x=column("x").log().normalize())
    records = {"word": [str(number & 63) for number in numbers], "x": [n / 7 for n in numbers]}
    return columns.fit(records).to_bytes()


def test_workers_and_the_master_are_killed_in_the_pass(start: Callable[..., FittingJob]) -> None:
    """One worker waits in the last task, the other has nothing to do. All of them die, and then the
    master does, with the statistics of all other tasks."""
    job = start("fit")
    job.wait_for(job.waits)
    before, masters = job.pids("worker"), job.pids("master")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    job.wait_for(lambda: job.waits() - set(before))
    job.kill("master")
    job.wait_for(lambda: set(job.pids("master")) - set(masters))
    job.go_on()
    job.check(whole())
    assert "fitted by 1,000 records" in job.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce", "ps"])
def test_a_job_that_resumes_takes_what_was_fitted(
    start: Callable[..., FittingJob], strategy: str
) -> None:
    job = start("fit", "--strategy", strategy)
    job.wait_for(job.waits)
    os.kill(job.waits().pop(), signal.SIGKILL)
    job.go_on()
    job.check(whole())
    resumed = start("resumed", "--strategy", strategy, "--resume")
    resumed.go_on()
    resumed.check(whole())
    assert "fitted by" not in resumed.log.read_text()
