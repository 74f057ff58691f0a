"""Tables of MaxCompute: names, partitions, and what a change of the table does."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.maxcompute_server import MaxCompute
from torch_edl.data.sources import check_source, open_source
from torch_edl.data.task_space import Shard
from torch_edl.errors import DataError, UsageError

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MaxCompute]:
    with pytest.MonkeyPatch.context() as environment:
        server = MaxCompute(tmp_path_factory.mktemp("maxcompute"), environment)
        yield server
        server.stop()


@pytest.fixture
def table() -> str:
    return f"edl_test_{os.getpid()}_{next(_numbers)}"


def numbers(count: int, shift: int = 0) -> pa.Table:
    return pa.table({"n": pa.array(range(shift, shift + count), pa.int64())})


def test_partitions_are_sources_of_their_own(server: MaxCompute, table: str) -> None:
    server.write(table, numbers(30), "day=1")
    source = open_source(server.url(table, "day=1"))
    assert source.name == server.url(table, "day=1")
    assert source.count == 30
    records = source.read(28, 30)
    assert isinstance(records, pa.Table)
    assert records.column("n").to_pylist() == [28, 29]


def test_rows_are_those_of_the_moment_at_which_the_source_was_opened(
    server: MaxCompute, table: str
) -> None:
    server.write(table, numbers(30))
    source = open_source(server.url(table))
    server.write(table, numbers(40, 100))
    records = source.read(0, 30)
    assert isinstance(records, pa.Table)
    assert records.column("n").to_pylist() == list(range(30))
    # A worker that starts now compares this with what the job counted.
    assert Shard.of(open_source(server.url(table))) != Shard.of(source)


def test_a_session_that_expired_is_replaced_unless_the_table_has_changed(
    server: MaxCompute, table: str
) -> None:
    if server.is_real:
        pytest.skip("sessions of MaxCompute last for a day")
    server.write(table, numbers(30))
    source = open_source(server.url(table))
    server.expire()
    assert len(source.read(0, 30)) == 30
    server.write(table, numbers(40))
    assert len(source.read(0, 30)) == 30
    server.expire()
    with pytest.raises(DataError, match="changed while the job was using it"):
        source.read(0, 30)


def test_a_table_that_is_not_there_is_named(server: MaxCompute, table: str) -> None:
    for use in (check_source, open_source):
        with pytest.raises(DataError, match=f"{table}: NoSuchObject"):
            use(server.url(table))


def test_keys_come_from_the_environment_and_reach_no_log(
    server: MaxCompute,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.write(table, numbers(3))
    with caplog.at_level(logging.INFO):
        open_source(server.url(table)).read(0, 3)
    assert "hush" not in caplog.text
    monkeypatch.delenv("ODPS_ENDPOINT")
    with pytest.raises(UsageError, match="ODPS_ENDPOINT is not set"):
        open_source(server.url(table))
    for name in list(os.environ):
        if name.startswith(("ODPS_STS", "ODPS_BEARER")):
            monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="no keys; set ODPS_STS_ACCESS_KEY_ID"):
        open_source(server.url(table))
