"""Processes of a model file or a script are killed while the preprocessing is fitted; its result is
exact all the same."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import Job
from tests.place import EDL
from torch_edl.checkpoint import layout
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.preprocessing import Columns, column

MODEL = Path(__file__).with_name("fitted_model.py")
SCRIPT = Path(__file__).with_name("fitted_script.py")
RECORDS = 1000


@pytest.mark.slow
def test_workers_and_the_master_are_killed_in_the_pass(
    start_job: Callable[..., Any], tmp_path: Path
) -> None:
    """The last task waits: one worker dies in it, the others have nothing to do, and the master
    dies with the statistics of all other tasks."""
    flags = ["--workers", "2", "--ps", "1", "--batch-size", "64", "--records-per-task", "64"]
    job = start_job(RECORDS, *flags, "--durability", "journal", delay_s=0, model=MODEL)
    job.wait_for(lambda: job.status().tasks.doing == 1 and job.status().tasks.done >= 12)
    before = job.pids("worker")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    job.wait_for(lambda: len(set(job.pids("worker")) - set(before)) == 2)
    job.wait_for(lambda: job.status().tasks.doing == 1)
    masters = job.pids("master")
    job.kill("master")
    job.wait_for(lambda: set(job.pids("master")) - set(masters) and job.status().tasks.doing == 1)
    assert job.done() == 0
    job.check()
    fitted = Columns.open(job.output)
    data = pa.concat_tables(pq.read_table(f) for f in sorted(tmp_path.glob("data-*.parquet")))
    again = Columns.from_spec(fitted.spec, lambda table: parsed(table)).fit([data])
    assert fitted.to_bytes() == again.to_bytes()
    assert fitted.fitted("ids").total == RECORDS


def parsed(table: pa.Table) -> dict[str, Any]:
    """Parse a table as the model file does."""
    numbers = table["n"].to_numpy()
    return {"word": [str(number & 63) for number in numbers.tolist()], "x": numbers / 7}


class FittingJob(Job):
    """A job of the script; its pass waits at the last record."""

    def __init__(self, folder: Path, name: str, flags: list[str]) -> None:
        self.told = folder / f"{name}-told"
        self.told.mkdir()
        self.checkpoints, self.output = folder / "checkpoints", folder / f"{name}-output"
        command = [
            *EDL, "run", "--job-name", name, "--output", str(self.output),
            "--checkpoint-dir", str(self.checkpoints), *flags, str(SCRIPT), str(self.told),
            str(self._gate(folder, name)), str(folder / "n.parquet"), str(RECORDS - 1),
        ]  # fmt: skip
        super().__init__(folder, name, command, str(SCRIPT))

    def waits(self) -> set[int]:
        return {int(file.name.partition("-")[2]) for file in self.told.glob("waits-*")}

    def check(self, expected: bytes, workers: int = 2) -> None:
        self.end_well()
        told = [file.read_bytes() for file in self.told.glob("fitted-*")]
        newest = layout.newest(self.checkpoints)
        assert newest is not None
        assert PREPROCESSING_FILE in layout.read(newest).files
        kept = [(folder / PREPROCESSING_FILE).read_bytes() for folder in (newest, self.output)]
        assert len(told) == workers
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


@pytest.mark.slow
def test_a_worker_and_the_master_of_a_script_are_killed_in_the_pass(
    start: Callable[..., FittingJob],
) -> None:
    """In the last task, with the statistics of all others at the master."""
    job = start("fit", "--workers", "1")
    job.wait_for(job.waits)
    [worker], [master] = job.pids("worker"), job.pids("master")
    os.kill(worker, signal.SIGKILL)
    job.kill("master")
    job.wait_for(lambda: job.waits() - {worker} and job.pids("master") != [master])
    job.check(whole(), workers=1)
    assert "fitted by 1,000 records" in job.log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)  # eleven processes import torch, two jobs one after the other
@pytest.mark.parametrize("strategy", ["allreduce", "ps"])
def test_a_job_that_resumes_takes_what_was_fitted(
    start: Callable[..., FittingJob], strategy: str
) -> None:
    flags = ["--workers", "2", "--strategy", strategy]
    job = start("fit", *flags)
    job.wait_for(job.waits)
    before = job.pids("worker")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    job.wait_for(lambda: job.waits() - set(before))
    job.check(whole())
    resumed = start("resumed", *flags, "--resume")
    resumed.check(whole())
    assert "fitted by" not in resumed.log.read_text()
