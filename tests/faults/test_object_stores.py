"""Workers that read from an S3-compatible server, in several formats, are killed; every record is
counted exactly once all the same."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from tests.broken_link import BrokenLink
from tests.faults.conftest import TASKS
from tests.s3_server import S3Server

RECORDS = 1200
FLAGS = ["--workers", "2", "--ps", "2", *TASKS]


def write_json(numbers: Any, path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in numbers.to_pylist())
    path.write_bytes(gzip.compress(text.encode()))


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "a.parquet": lambda numbers, path: parquet.write_table(numbers, path, row_group_size=64),
    "b.csv": lambda numbers, path: csv.write_csv(numbers, path),
    "c.jsonl.gz": write_json,
    "d.feather": lambda numbers, path: feather.write_feather(numbers, path, chunksize=50),
}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """With the numbers below :data:`RECORDS` in ``s3://numbers/day=1/``, in a file per format."""
    server = S3Server(tmp_path)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3")
    store.mkdir("numbers")
    each = RECORDS // len(WRITERS)
    for place, (name, write) in enumerate(WRITERS.items()):
        local = tmp_path / name
        write(pa.table({"n": range(place * each, (place + 1) * each)}), local)
        store.put(str(local), f"numbers/day=1/{name}")
    yield server
    server.kill()
    store.clear_instance_cache()


@pytest.mark.slow
def test_a_worker_is_killed(s3: S3Server, start_job: Callable[..., Any]) -> None:
    job = start_job(RECORDS, *FLAGS, data="s3://numbers/day=*/*")
    job.wait_for(lambda: job.done() > 300)
    job.kill("worker")
    job.check()
    assert "PUT" not in "".join(request for request in s3.requests() if "edl-index" in request)
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
    assert not any(secret in file.read_text() for file in job.folder.rglob("*.log"))


@pytest.mark.slow
def test_connections_break_and_a_worker_is_killed(
    s3: S3Server, start_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokenLink(s3.port, share=700, every=3) as link:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
        fsspec.filesystem("s3").clear_instance_cache()
        job = start_job(RECORDS, *FLAGS, data="s3://numbers/day=*/*")
        job.wait_for(lambda: job.done() > 300)
        job.kill("worker")
        job.check()
        assert link.breaks > 10


@pytest.mark.slow
def test_everybody_is_killed_and_the_store_pauses(
    s3: S3Server, start_job: Callable[..., Any]
) -> None:
    job = start_job(RECORDS, *FLAGS, "--durability", "journal", data="s3://numbers/day=*/*")
    for count, role in [(100, "worker"), (300, "ps"), (500, "master"), (700, "worker")]:
        job.wait_for(lambda count=count: job.done() > count)
        s3.pause()
        job.kill(role)
        s3.resume()
    job.check()
