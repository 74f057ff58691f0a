"""What holds for a real PostgreSQL beyond the promises of every source."""

from __future__ import annotations

import os

import psycopg
import pytest

from tests.postgres_server import PASSWORD, USER, Postgres
from torch_edl.data.sources import check_source, open_source
from torch_edl.errors import DataError
from torch_edl.plugins.sql import source as module


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a table of 50 rows in a schema of its own."""
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    with psycopg.connect(postgres.url) as connection:
        connection.execute('CREATE SCHEMA IF NOT EXISTS "My data"')
        connection.execute('DROP TABLE IF EXISTS "My data".t')
        connection.execute(
            'CREATE TABLE "My data".t AS SELECT g AS id, g::numeric / 2 AS half, '
            "gen_random_uuid() AS name, now()::timestamp AS at, NULL::text AS nothing "
            "FROM generate_series(1, 50) g"
        )
    return postgres.url


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg"])
def test_types(url: str, driver: str) -> None:
    source = open_source(f"{driver}{url[10:]}#table=My data.t&key=id")
    adbc = driver == "postgresql"
    assert source.count == 50
    assert source.metadata.column_types == (
        "int32" if adbc else "int64",  # of Python's numbers
        "double",
        "fixed_size_binary[16]",
        "timestamp[us]",
        "string" if adbc else "null",
    )
    assert source.read(20, 30).column("id").to_pylist() == list(range(21, 31))  # type: ignore[union-attr]


def test_a_query_with_casts(url: str) -> None:
    query = 'SELECT id::text AS id, half::float8 AS half FROM "My data".t WHERE id % 2 = 0'
    source = open_source(f"{url}#key=id&query={query}")
    assert source.metadata.column_types == ("string", "double")
    assert source.count == 25
    assert open_source(source.name).name == source.name


def test_columns_of_one_name_are_refused(url: str) -> None:
    with pytest.raises(DataError, match="column 'half' appears twice"):
        open_source(f'{url}#key=id&query=SELECT id, half, half FROM "My data".t')


def test_a_restarted_server_is_connected_again(url: str, postgres: Postgres) -> None:
    source = open_source(f"{url}#table=My data.t&key=id")
    whole = source.read(0, 50)
    postgres.stop()
    with pytest.raises(DataError, match="connection"):
        source.read(0, 50)
    postgres.start()
    assert source.read(0, 50) == whole
    postgres.stop()
    postgres.start()
    assert source.read(0, 50) == whole  # over the connection that was left idle


def test_a_connection_holds_no_transaction_open(url: str) -> None:
    """Which would keep the server from cleaning the table up while the job trains."""
    source = open_source(f"{url}#table=My data.t&key=id")
    source.read(0, 50)
    with psycopg.connect(url) as connection:
        states = connection.execute(
            "SELECT state FROM pg_stat_activity WHERE state LIKE 'idle in%'"
        ).fetchall()
    assert states == []


def test_what_a_job_could_not_read_is_seen_before_it_starts(url: str) -> None:
    check_source(f"{url}#table=My data.t&key=id")
    with psycopg.connect(url) as connection:
        connection.execute("DROP ROLE IF EXISTS other")
        connection.execute(f"CREATE ROLE other LOGIN PASSWORD '{PASSWORD}'")
    other = url.replace(USER, "other")
    for name, key, message in (
        (f"{url}#table=My data.none", "id", 'relation "My data.none" does not exist'),
        (f"{url}#table=My data.t", "nid", "no column 'nid', which is the key"),
        (f"{url}#table=My data.t", "half", "the key 'half' is of the type double"),
        (f"{other}#table=My data.t", "id", "permission denied for schema"),
        (f"{url[:-9]}/none#table=t", "id", 'database "none" does not exist'),
    ):
        with pytest.raises(DataError, match=message):
            check_source(f"{name}&key={key}")


def test_a_wrong_password_is_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "not " + PASSWORD)
    monkeypatch.setenv("PW", "hush")
    for name in (url, url.replace(USER, USER + ":${PW}")):
        with pytest.raises(DataError, match="password authentication failed") as raised:
            open_source(f"{name}#table=My data.t&key=id")
        assert "hush" not in str(raised.value)
    monkeypatch.setenv("PW", PASSWORD)
    assert open_source(f"{name}#table=My data.t&key=id").count == 50
    assert os.environ["PW"] not in open_source(f"{name}#table=My data.t&key=id").name
