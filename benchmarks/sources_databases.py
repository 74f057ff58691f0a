"""Records per second of the sources that are no files, against the bare library's reader.

    python -m benchmarks.sources_databases [--rows N]

A table of a number, a text and a float, in the order of its key. `bare`: the driver's own reader
gives the whole table as Arrow in one statement, `SELECT * FROM t ORDER BY id`. `tasks_of_2048` and
`tasks_of_65536`: our source gives all of its rows in tasks of 65,536 records, one after the
other, each by its range of keys and compared with what was counted; `bare_of_N` is the driver
alone with the same statements. Nothing is kept in memory between two passes. `ratio_N` and
`ratio_of_whole_N`: of ours to these two. `open_s`: until the source is counted. PostgreSQL is a
server of its own on this machine.

Kafka is librdkafka's mock cluster in a process of its own, with messages of 40 bytes; `bare` takes
them from confluent_kafka's consumer. MaxCompute is the stand-in of the tests with a fifth of the
rows; `bare` is pyodps' reader of the whole table, and of the same ranges.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi as postgresql_adbc
from adbc_driver_sqlite import dbapi as sqlite_adbc
from confluent_kafka import Consumer, TopicPartition
from odps import ODPS
from odps.tunnel import TableTunnel

from benchmarks.report import report
from tests.kafka_server import Kafka
from tests.maxcompute_server import MaxCompute
from tests.postgres_server import PASSWORD, Postgres
from torch_edl.data.sources import Source, open_source, parts
from torch_edl.data.sources.files import blocks

REPEATS = 5
SIZES = (2048, 65536)
MESSAGES = 90_000
consumers: dict[str, Consumer] = {}
_TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, word text, number double precision)"
_ALL = "SELECT * FROM t ORDER BY id"
_RANGE = "SELECT * FROM t WHERE id >= {} AND id <= {} ORDER BY id"


def seconds(work: Callable[[], int], rows: int) -> float:
    """The least of several times."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        assert work() == rows
        times.append(time.perf_counter() - begin)
    return min(times)


def in_tasks(source: Source, records: int) -> int:
    """Read all records in parts of a fixed size."""
    return sum(
        len(source.read(start, min(start + records, source.count)))
        for start in range(0, source.count, records)
    )


Bare = Callable[[str, list[int]], int]
"""Executes a statement with its values; the number of its rows."""


def measure(name: str, rows: int, mark: tuple[str, str], bare: Bare) -> dict[str, Any]:
    """The figures of one source.

    Args:
        mark: how the driver writes the two parameters of a range.
    """
    begin = time.perf_counter()
    source = open_source(name)
    figures: dict[str, Any] = {"open_s": round(time.perf_counter() - begin, 3)}
    whole = rows / seconds(lambda: bare(_ALL, []), rows)
    figures["bare"] = round(whole)
    for size in SIZES:

        def ranges(size: int = size) -> int:
            return sum(bare(_RANGE.format(*mark), [n, n + size - 1]) for n in range(0, rows, size))

        figures |= compared(source, size, rows, rows / seconds(ranges, rows), whole)
    return figures


def compared(source: Source, size: int, rows: int, alone: float, whole: float) -> dict[str, Any]:
    """Our rate beside two of the bare reader: with the same ranges, and for the whole table."""
    ours = rows / seconds(lambda: in_tasks(source, size), rows)
    return {
        f"tasks_of_{size}": round(ours),
        f"bare_of_{size}": round(alone),
        f"ratio_{size}": round(ours / alone, 2),
        f"ratio_of_whole_{size}": round(ours / whole, 2),
    }


def adbc(connection: Any) -> Bare:
    """Executes over an ADBC connection, with one cursor."""
    cursor = connection.cursor()

    def execute(statement: str, values: list[int]) -> int:
        cursor.execute(statement, values or None)
        return len(cursor.fetch_arrow_table())

    return execute


@contextmanager
def postgres(rows: int) -> Iterator[tuple[str, tuple[str, str], Bare]]:
    """A server with the table."""
    os.environ["PGPASSWORD"] = PASSWORD
    server = Postgres()
    try:
        with closing(postgresql_adbc.connect(server.url, autocommit=True)) as connection:
            with closing(connection.cursor()) as cursor:
                cursor.execute(_TABLE)
                cursor.adbc_ingest("t", table(rows), mode="append")
                cursor.execute("VACUUM ANALYZE t")
            yield server.url, ("$1", "$2"), adbc(connection)
    finally:
        server.remove()


@contextmanager
def sqlite(rows: int) -> Iterator[tuple[str, tuple[str, str], Bare]]:
    """A file with the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(_TABLE.replace("bigint", "INTEGER"))
            values = zip(*(c.to_pylist() for c in table(rows).columns), strict=True)
            connection.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
            connection.commit()
        with closing(sqlite_adbc.connect(str(path), autocommit=True)) as connection:
            yield f"sqlite:///{path}", ("?", "?"), adbc(connection)


@contextmanager
def duck(rows: int) -> Iterator[tuple[str, tuple[str, str], Bare]]:
    """A file with the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.duckdb"
        content = table(rows)
        with closing(duckdb.connect(str(path))) as connection:
            connection.execute(_TABLE)
            connection.register("content", content)
            connection.execute("INSERT INTO t SELECT * FROM content")
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            yield (
                f"duckdb:///{path}",
                ("$1", "$2"),
                lambda statement, values: len(
                    connection.sql(statement, params=values).to_arrow_table()
                ),
            )


def kafka() -> dict[str, Any]:
    """The figures of a partition; the broker keeps 100,000 messages."""
    broker = Kafka("t:1")
    try:
        broker.produce("t", 0, (b"%040d" % n for n in range(MESSAGES)))
        (name,) = parts([broker.url("t")])
        source = open_source(name)
        bare = MESSAGES / seconds(lambda: consumed(broker.address), MESSAGES)
        figures: dict[str, Any] = {"bare": round(bare)}
        for size in SIZES:
            ours = MESSAGES / seconds(lambda size=size: in_tasks(source, size), MESSAGES)  # type: ignore[misc]
            figures |= {f"tasks_of_{size}": round(ours)}
            figures |= {f"ratio_of_whole_{size}": round(ours / bare, 2)}
        return figures
    finally:
        broker.stop()


def consumed(address: str) -> int:
    """Takes all messages with a consumer, whose start counts as ours does."""
    settings = {"bootstrap.servers": address, "group.id": "bare", "fetch.wait.max.ms": 5}
    consumer = consumers.setdefault(address, Consumer({**settings, "log_level": 0}))
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes | None] = []
    while len(values) < MESSAGES:
        values += [m.value() for m in consumer.consume(min(2000, MESSAGES - len(values)), 5)]
    return len(values)


def maxcompute(rows: int) -> dict[str, Any]:
    """The figures of a table."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        server = MaxCompute(Path(folder), environment)
        server.write("t", table(rows))
        session = TableTunnel(ODPS.from_environments(), project=server.project)
        download = session.create_download_session("t")

        def bare(first: int, count: int) -> int:
            with download.open_arrow_reader(first, count) as reader:
                return len(reader.read())

        begin = time.perf_counter()
        source = open_source(server.url("t"))
        figures: dict[str, Any] = {"open_s": round(time.perf_counter() - begin, 3)}
        whole = rows / seconds(lambda: bare(0, rows), rows)
        figures["bare"] = round(whole)
        for size in SIZES:

            def ranges(size: int = size) -> int:
                return sum(bare(n, min(size, rows - n)) for n in range(0, rows, size))

            figures |= compared(source, size, rows, rows / seconds(ranges, rows), whole)
        server.stop()
        return figures


def table(rows: int) -> pa.Table:
    """What the databases hold."""
    return pa.table(
        {
            "id": range(rows),
            "word": [f"word {i}" for i in range(rows)],
            "number": [i + 0.5 for i in range(rows)],
        }
    )


def main() -> None:
    """Measures each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    blocks.cache.limit = 0
    figures = {}
    for database in (postgres, sqlite, duck):
        with database(args.rows) as (url, mark, bare):
            figures[database.__name__] = measure(f"{url}#table=t&key=id", args.rows, mark, bare)
    figures |= {"kafka": kafka(), "maxcompute": maxcompute(args.rows // 5)}
    report("sources_databases", {"rows": args.rows, **figures})


if __name__ == "__main__":
    main()
