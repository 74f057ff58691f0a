"""Rows of databases: what a name says, what is refused, and what a change of the table does."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from torch_edl.data.sources import check_source, expand, open_source
from torch_edl.errors import DataError, UsageError
from torch_edl.plugins.sql import source as module
from torch_edl.plugins.sql.name import connection_url, parse

URL = "postgresql://u@h/d"


# ---- names ----


def test_parts_are_quoted() -> None:
    name = parse(f"{URL}#table=my%20clicks&key=%26id")
    assert (name.table, name.key) == ("my clicks", "&id")
    assert parse(str(name)) == name


def test_the_path_of_a_database_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expand(["sqlite:///a b.db#table=t&key=id"]) == [
        f"sqlite:///{tmp_path}/a b.db#table=t&key=id"
    ]


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    name = parse("mysql+pymysql://u:${PW}@h/d?token=${TOKEN}#table=t&key=id")
    monkeypatch.setenv("PW", "a/b@c")
    with pytest.raises(UsageError, match="environment variable TOKEN is not set"):
        connection_url(name)
    monkeypatch.setenv("TOKEN", "hush")
    url, secrets = connection_url(name)
    assert (url.password, url.query["token"]) == ("a/b@c", "hush")
    assert set(secrets) == {"a/b@c", "hush"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mysql+pymysql://h/d", "run: pip install pymysql$"),
        ("mysql://h/d", "run: pip install mysqlclient$"),
        ("mysql+nothing://h/d", "SQLAlchemy knows no mysql.nothing"),
        ("sqlite:////nowhere/a.db", "/nowhere/a.db: no such file"),
        ("duckdb:////nowhere/a.db", "/nowhere/a.db: no such file"),
    ],
)
def test_what_is_missing_here_is_seen_without_a_connection(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_source(f"{name}#table=t&key=id")


# ---- tables ----

Execute = Callable[..., None]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a table of the keys 0, 10 .. 490, in blocks of 7 rows and pages of 14."""
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    monkeypatch.setattr(module, "PAGE_BLOCKS", 2)
    name = f"sqlite:///{tmp_path}/data.db#table=t&key=id"
    execute(name, "CREATE TABLE t (id INTEGER, word TEXT)")
    for key in range(0, 500, 10):
        execute(name, "INSERT INTO t VALUES (?, ?)", key, f"w{key}")
    return name


def execute(name: str, statement: str, *values: object) -> None:
    path = name.partition("#")[0].removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


def keys(records: object) -> list[int]:
    assert isinstance(records, pa.Table)
    found: list[int] = records.column("id").to_pylist()
    return found


def test_the_tables_are_named_where_one_is_missing(table: str) -> None:
    for name in (table, table.replace("sqlite:", "sqlite+pysqlite:")):
        check_source(name)
        for use in (check_source, open_source):
            with pytest.raises(DataError, match=r"no such table: tt; tables: t$"):
                use(name.replace("table=t", "table=tt"))
            with pytest.raises(DataError, match=r"no column 'ix', which is the key, among id, w"):
                use(name.replace("key=id", "key=ix"))


def test_duckdb_names_its_tables(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        for number in range(21):
            connection.execute(f"CREATE TABLE t{number:02} (id INTEGER)")
    with pytest.raises(DataError, match=r"; tables: main.t00, main.t01, .*main.t19, \.\.\.$"):
        open_source(f"duckdb:///{tmp_path}/a.duckdb#table=none&key=id")


def test_a_source_that_is_dropped_closes_its_connections(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    cycle: list[object] = [open_source(table)]  # which is not let go in order
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert complaints == []


def test_rows_that_are_added_behind_the_last_key_are_no_part(table: str) -> None:
    source = open_source(table)
    execute(table, "INSERT INTO t VALUES (491, 'new')")
    other = open_source(source.name)  # as a worker that starts later
    assert other.name == source.name
    for each in (source, other):
        assert each.count == 50
        assert keys(each.read(0, 50)) == list(range(0, 500, 10))
    assert open_source(table).count == 51


@pytest.mark.parametrize(
    "changes",
    [
        ["DELETE FROM t WHERE id = 100"],
        ["INSERT INTO t VALUES (101, 'new')"],
        ["DELETE FROM t WHERE id = 100", "INSERT INTO t VALUES (101, 'new')"],
        ["DELETE FROM t WHERE id = 100", "INSERT INTO t VALUES (81, 'new')"],
    ],
)
def test_rows_that_are_added_or_deleted_before_are_noticed(table: str, changes: list[str]) -> None:
    source = open_source(table)
    for change in changes:
        execute(table, change)
    with pytest.raises(DataError, match="rows were added or deleted"):
        source.read(10, 11)
    with pytest.raises(DataError, match="rows were added or deleted"):
        open_source(source.name)
    assert keys(source.read(0, 7)) == list(range(0, 70, 10))  # a block of which all rows are there


def test_a_row_that_is_updated_has_its_new_values(table: str) -> None:
    source = open_source(table)
    execute(table, "UPDATE t SET word = 'new' WHERE id = 100")
    records = source.read(10, 11)
    assert isinstance(records, pa.Table)
    assert records.to_pylist() == [{"id": 100, "word": "new"}]


@pytest.mark.parametrize("twice", [0, 100, 130, 140, 490])
def test_a_key_that_is_there_twice_is_refused(table: str, twice: int) -> None:
    """Also where one page of keys ends and the next begins."""
    execute(table, "INSERT INTO t VALUES (?, 'again')", twice)
    with pytest.raises(DataError, match=f"the key 'id' has the value {twice} more than once"):
        open_source(table)


def test_a_key_that_is_null_is_refused(table: str) -> None:
    execute(table, "INSERT INTO t VALUES (NULL, 'none')")
    with pytest.raises(DataError, match="the key 'id' is NULL in some rows"):
        open_source(table)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data.db", "none.db", "No such file"),
        ("key=id", "key=id&last=x", "last=x: expected an integer"),
    ],
)
def test_what_is_not_there_is_named(table: str, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_source(table.replace(old, new))


@pytest.mark.parametrize("end", [";", " -- without the first"])
def test_a_query_with_a_key_of_texts(table: str, end: str) -> None:
    query = "SELECT word AS id, id / 10 AS n, '12:30' AS at FROM t WHERE word <> 'w0'"
    url = table.partition("#")[0]
    source = open_source(f"{url}#key=id&last=w290&query={query}{end}")
    words = sorted(f"w{n}" for n in range(10, 500, 10) if f"w{n}" <= "w290")
    records = source.read(0, source.count)
    assert isinstance(records, pa.Table)
    assert records.column("id").to_pylist() == words
    assert set(records.column("at").to_pylist()) == {"12:30"}
    assert open_source(source.name).name == source.name


def test_identifiers_are_quoted(table: str) -> None:
    execute(table, 'CREATE TABLE "a ""b; --" ("i d" INTEGER, "select" TEXT)')
    execute(table, 'INSERT INTO "a ""b; --" VALUES (1, \'x\')')
    url = table.partition("#")[0]
    source = open_source(f'{url}#table=a "b; --&key=i d')
    assert source.metadata.column_names == ("i d", "select")
    assert source.count == 1


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite"])
def test_types_are_the_same_where_a_range_is_null(table: str, driver: str) -> None:
    """SQLite knows the types of values, and not of columns."""
    execute(table, "CREATE TABLE late (id INTEGER PRIMARY KEY, x REAL, y TEXT, z BLOB)")
    execute(table, "INSERT INTO late SELECT id / 10, NULL, NULL, NULL FROM t")
    execute(table, "UPDATE late SET x = 0.5, y = 'y', z = x'00' WHERE id = 40")
    source = open_source(table.replace("sqlite", driver).replace("table=t", "table=late"))
    assert source.metadata.column_types == ("int64", "double", "string", "binary")
    schemas = {source.read(start, start + 5).schema for start in (0, 38)}  # type: ignore[union-attr]
    assert len(schemas) == 1


@pytest.mark.parametrize("key", ["id", "x"])
def test_values_of_other_types_are_an_error(table: str, key: str) -> None:
    execute(table, "CREATE TABLE mixed (id INTEGER PRIMARY KEY, x)")
    execute(table, "INSERT INTO mixed VALUES (1, 1), (2, 'two')")
    with pytest.raises(DataError, match=r"values of different types.* CAST"):
        open_source(table.replace("table=t&key=id", f"table=mixed&key={key}")).read(0, 2)


def test_a_key_of_another_type_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(duckdb.connect(str(tmp_path / "d"))) as connection:
        connection.execute("CREATE TABLE t AS SELECT i / 2 AS id FROM range(9) r(i)")
    for use in (check_source, open_source):
        with pytest.raises(DataError, match="the key 'id' is of the type double"):
            use(f"duckdb:///{tmp_path}/d#table=t&key=id")
