"""Jobs on a database are hurt while its table changes; every row is counted exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.faults.conftest import TASKS
from tests.maxcompute_server import MaxCompute
from tests.postgres_server import PASSWORD, Postgres

RECORDS = 2000
FLAGS = [*TASKS, "--workers", "2", "--ps", "2"]


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """A server with the numbers below ``RECORDS``."""
    server = Postgres()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE numbers (n bigint PRIMARY KEY)")
        connection.execute(f"INSERT INTO numbers SELECT generate_series(0, {RECORDS - 1})")
    yield server
    server.remove()


@pytest.mark.slow
def test_processes_and_the_database_are_killed(
    start_job: Callable[..., Any], postgres: Postgres
) -> None:
    """Rows that are added meanwhile are no part of the job, whoever starts when."""
    url = f"{postgres.url}#table=numbers&key=n"
    job = start_job(RECORDS, *FLAGS, "--max-task-failures", "1000", data=url)
    job.wait_for(lambda: job.done() > 200)
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"INSERT INTO numbers SELECT generate_series({RECORDS}, 3000)")
    job.kill("worker")
    job.wait_for(lambda: job.done() > 600)
    job.kill("master")
    postgres.stop()
    job.kill("worker")
    postgres.start()
    job.wait_for(lambda: job.done() > 1200)
    job.kill("ps")
    job.check()
    assert PASSWORD not in job.report()


@pytest.mark.slow
def test_processes_are_killed_that_read_a_partition_of_maxcompute(
    start_job: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every session ends, so that the others have to open another one."""
    server = MaxCompute(tmp_path, monkeypatch)
    server.write("edl_numbers", pa.table({"n": range(RECORDS)}), "day=1")
    url = server.url("edl_numbers", "day=1")
    job = start_job(RECORDS, *FLAGS, data=url)
    for done, role in [(200, "worker"), (600, "master"), (1000, "worker"), (1300, "ps")]:
        job.wait_for(lambda done=done: job.done() > done)
        job.kill(role)
        if not server.is_real:
            server.expire()
    job.check()
    assert "hush" not in job.report()
    server.stop()
