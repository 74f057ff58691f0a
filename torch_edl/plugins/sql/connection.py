"""Connections to SQL databases that return Arrow tables.

ADBC is used for PostgreSQL and SQLite, the interface of DuckDB for DuckDB, and SQLAlchemy for every
other URL. SQLAlchemy Core makes the statements: its dialects quote identifiers and bind values.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from torch_edl.errors import DataError, UsageError
from torch_edl.plugins.sql.name import SqlName, connection_url, is_file

BUSY_MS = 60_000
"""Time that a read of SQLite waits for a writer, ms."""

MOST_ROWS = 1 << 24
"""Default limit of the rows that a statement is expected to return."""

_SHOWN = 500  # maximum length of a driver's error text
_STATEMENT = ("query:", "[SQL:")  # where a driver's error text continues with the statement


class _Compiled:
    """A connection that accepts SQL text with positional parameters."""

    dialect: Any

    def text(self, statement: sa.Select[Any], values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        text, names, own = _compiled(statement, self.dialect)
        bound = {**own, **values}
        return text, [bound[name] for name in names]


@functools.lru_cache(maxsize=64)
def _compiled(
    statement: sa.Select[Any], dialect: Any
) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    compiled = statement.compile(dialect=dialect)
    return str(compiled), tuple(compiled.positiontup or ()), compiled.params


class _Adbc(_Compiled):
    """A connection of ADBC with one cursor, which prepares a statement again only if its text
    differs from the last one."""

    def __init__(self, connection: Any) -> None:
        self._adbc = connection
        self._cursor = connection.cursor()

    def execute(self, statement: sa.Select[Any], values: Mapping[str, Any], most: int) -> pa.Table:
        return self.fetch(*self.text(statement, values))

    def fetch(self, text: str, values: list[Any]) -> pa.Table:
        self._cursor.execute(text, values or None)
        return self._cursor.fetch_arrow_table()

    def close(self) -> None:
        self._cursor.close()
        self._adbc.close()


class _Postgres(_Adbc):
    driver = "adbc_driver_postgresql.dbapi"
    typed = True
    dialect = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]

    def __init__(self, url: sa.URL) -> None:
        from adbc_driver_postgresql import dbapi

        text = url.render_as_string(hide_password=False)
        super().__init__(dbapi.connect(text, autocommit=True))


class _Sqlite(_Adbc):
    driver = "adbc_driver_sqlite.dbapi"
    typed = False
    dialect = sqlite.dialect(paramstyle="qmark")

    def __init__(self, url: sa.URL) -> None:
        from adbc_driver_sqlite import dbapi

        path = str(url.database)
        if not path.startswith("file:"):
            os.stat(path)  # the driver reports a missing file as out of memory
        # Read only, since SQLite would create a missing file otherwise.
        uri = path if path.startswith("file:") else f"file:{quote(path)}?mode=ro"
        super().__init__(dbapi.connect(uri, autocommit=True))
        self.fetch(f"PRAGMA busy_timeout = {BUSY_MS:d}", [])

    def execute(self, statement: sa.Select[Any], values: Mapping[str, Any], most: int) -> pa.Table:
        # The driver derives the types of the columns from the first batch, so all rows must be in
        # one batch. It reserves memory for ``most`` rows.
        options = {"adbc.sqlite.query.batch_rows": str(most)}
        self._cursor.adbc_statement.set_options(**options)
        return super().execute(statement, values, most)


class _DuckDb(_Compiled):
    driver = "duckdb"
    typed = True
    dialect = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]

    def __init__(self, url: sa.URL) -> None:
        import duckdb

        self._duckdb = duckdb.connect(str(url.database), read_only=True)

    def execute(self, statement: sa.Select[Any], values: Mapping[str, Any], most: int) -> pa.Table:
        text, bound = self.text(statement, values)
        return self._duckdb.sql(text, params=bound).to_arrow_table()

    def close(self) -> None:
        self._duckdb.close()


class _SqlAlchemy:
    typed = False

    def __init__(self, url: sa.URL) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def execute(self, statement: sa.Select[Any], values: Mapping[str, Any], most: int) -> pa.Table:
        result = self._connection.execute(statement, values)
        names, rows = list(result.keys()), result.fetchall()
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return pa.Table.from_arrays([pa.array(column) for column in columns], names=names)

    def close(self) -> None:
        self._connection.close()


Connection = _Adbc | _DuckDb | _SqlAlchemy
"""One connection, used by one thread at a time."""

_DRIVERS: dict[str, Any] = {"postgresql": _Postgres, "sqlite": _Sqlite, "duckdb": _DuckDb}

_PACKAGES = {"MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary"}
"""Packages by the name of their module, where the names differ."""


def _no_driver(name: SqlName, url: sa.URL, error: ImportError) -> UsageError:
    module = (error.name or url.drivername).partition(".")[0]
    package = _PACKAGES.get(module, module)
    if url.drivername in _DRIVERS:
        package = "'torch-edl[sql]'"
    return UsageError(
        f"{name.url}: its driver is not installed ({error}); run: pip install {package}"
    )


def check_connection(name: SqlName) -> None:
    """Import the driver of a database and check that its file exists, without a connection.

    Raises:
        UsageError: the driver is not installed, an environment variable is not set, or the file
            does not exist.
    """
    url, _ = connection_url(name)
    try:
        if url.drivername in _DRIVERS:
            importlib.import_module(_DRIVERS[url.drivername].driver)
        else:
            url.get_dialect().import_dbapi()
    except ImportError as error:
        raise _no_driver(name, url, error) from None
    except sa.exc.NoSuchModuleError:
        raise UsageError(
            f"{name.url}: SQLAlchemy knows no {url.drivername}; check the first word, or install "
            "the package that has it"
        ) from None
    if is_file(url) and not os.path.isfile(str(url.database)):
        raise UsageError(
            f"{name.url}: no such file; check the path, which begins behind the third slash "
            f"(in {url.drivername}:////data/x.db it is /data/x.db)"
        )


def _close_all(idle: list[Connection], process: int) -> None:
    while idle and process == os.getpid():  # a forked process shares the sockets of its parent
        with contextlib.suppress(Exception):
            idle.pop().close()


class Connections:
    """The pooled connections of a process to one database.

    Each call uses one connection exclusively and returns it to the pool. A forked process opens its
    own connections.
    """

    def __init__(self, name: SqlName) -> None:
        self._name = name
        self._url, self._secrets = connection_url(name)
        self._driver = _DRIVERS.get(self._url.drivername, _SqlAlchemy)
        self.typed: bool = self._driver.typed
        """True if the types of a statement do not depend on its rows, even if all values are
        NULL."""
        self.backend: str = self._url.get_backend_name()
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: list[Connection] = []
        # Also called at the end of the process: ADBC warns about connections that are not closed.
        weakref.finalize(self, _close_all, self._idle, self._process)

    def execute(
        self, statement: sa.Select[Any], *, most: int = MOST_ROWS, **values: Any
    ) -> pa.Table:
        """Return the rows of a statement; a lost connection is replaced.

        Args:
            most: expected number of rows; more rows are returned too.
            values: values of the parameters.

        Raises:
            DataError: the database cannot be reached, or rejects the statement.
        """
        connection = self._take()
        if connection is not None:
            with contextlib.suppress(Exception), self._kept(connection):
                return connection.execute(statement, values, most)
        with self._as_data_error():
            connection = self._driver(self._url)
            with self._kept(connection):
                return connection.execute(statement, values, most)

    def _take(self) -> Connection | None:
        with self._lock:
            if self._process != os.getpid():
                self._begin()
            return self._idle.pop() if self._idle else None

    @contextlib.contextmanager
    def _kept(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    @contextlib.contextmanager
    def _as_data_error(self) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except ImportError as error:
            raise _no_driver(self._name, self._url, error) from None
        except Exception as error:
            lines = [" ".join(line.split()) for line in str(error).splitlines()]
            statement = (at for at, line in enumerate(lines) if line.startswith(_STATEMENT))
            text = "; ".join(filter(None, lines[: next(statement, None)]))[:_SHOWN]
            for secret in self._secrets:
                text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
            # The cause may contain secrets.
            raise DataError(str(self._name), text) from None
