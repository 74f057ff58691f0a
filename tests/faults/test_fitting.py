"""Processes are killed while the preprocessing is fitted; its statistics are exact all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_edl.preprocessing import Columns

MODEL = Path(__file__).with_name("fitted_model.py")
RECORDS = 1000


def test_workers_and_the_master_are_killed_in_the_pass(
    start_job: Callable[..., Any], tmp_path: Path
) -> None:
    """The last task waits: one worker dies in it, the others have nothing to do, and the master
    dies with the statistics of all other tasks."""
    flags = ["--workers", "2", "--ps", "1", "--batch-size", "64", "--records-per-task", "64"]
    job = start_job(RECORDS, *flags, "--durability", "journal", delay_s=0, model=MODEL)
    job.wait_for(lambda: job.status().tasks_doing == 1 and job.status().tasks_done >= 12)
    before = job.pids("worker")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    job.wait_for(lambda: len(set(job.pids("worker")) - set(before)) == 2)
    job.wait_for(lambda: job.status().tasks_doing == 1)
    masters = job.pids("master")
    job.kill("master")
    job.wait_for(lambda: set(job.pids("master")) - set(masters) and job.status().tasks_doing == 1)
    assert job.done() == 0
    job.check()
    fitted = Columns.open(job.output)
    data = pa.concat_tables(pq.read_table(f) for f in sorted(tmp_path.glob("data-*.parquet")))
    again = Columns.from_spec(fitted.spec, lambda table: parsed(table)).fit([data])
    assert fitted.to_bytes() == again.to_bytes()
    assert fitted.fitted("ids").total == RECORDS


def parsed(table: pa.Table) -> dict[str, Any]:
    """As the model file parses it."""
    numbers = table["n"].to_numpy()
    return {"word": [str(number & 63) for number in numbers.tolist()], "x": numbers / 7}
