"""The columns of an SQL table or query, and their types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from torch_edl.errors import DataError
from torch_edl.plugins.sql.connection import Connections
from torch_edl.plugins.sql.name import SqlName

_TABLES = 20  # maximum number of tables that a message names
_SYSTEM = "'information_schema', 'pg_catalog', 'mysql', 'performance_schema', 'sys'"


def rows_of(name: SqlName) -> Any:
    """Return the table or query as a part of a statement."""
    if name.query:
        # The colons of the user's text (casts, times) are no parameters.
        return sa.text("(" + name.query.replace(":", r"\:") + ") AS records")
    schema, _, table = name.table.rpartition(".")
    return sa.table(table, schema=schema or None)


def columns(database: Connections, name: SqlName) -> pa.Schema:
    """Return the columns of the table or query.

    If the database has no types for them, the types are those of an arbitrary row.

    Raises:
        DataError: no connection, no such table, two columns of one name, or no suitable key.
    """
    rows, key = rows_of(name), name.key
    try:
        found = database.execute(sa.select(sa.text("*")).select_from(rows).limit(1)).schema
    except DataError as error:
        raise DataError(str(name), f"{error.reason}{_tables(database, rows)}") from None
    twice = sorted({column for column in found.names if found.names.count(column) > 1})
    if twice:
        raise DataError(str(name), f"column {twice[0]!r} appears twice; name it otherwise: AS")
    if key not in found.names:
        shown = ", ".join(found.names[:20])
        raise DataError(str(name), f"no column {key!r}, which is the key, among {shown}")
    type = _type(database, rows, found.field(key))
    if not (pa.types.is_integer(type) or pa.types.is_string(type) or pa.types.is_null(type)):
        raise DataError(
            str(name),
            f"the key {key!r} is of the type {type}; name a column of integers or texts, or make "
            "one in a query",
        )
    return found


def schema_of(database: Connections, name: SqlName) -> pa.Schema:
    """Return the columns with the types that ``feed`` receives.

    Raises:
        DataError: as for :func:`columns`.
    """
    rows = rows_of(name)
    found = columns(database, name)
    return pa.schema([pa.field(field.name, _type(database, rows, field)) for field in found])


def _type(database: Connections, rows: Any, field: Any) -> Any:
    """Return the type of a column that ``feed`` receives.

    Decimal numbers become floats: drivers return them as texts, or with as many digits as the rows
    of an answer need.
    """
    type = field.type if database.typed else _of_value(database, rows, field.name)
    if pa.types.is_decimal(type):
        return pa.float64()
    if isinstance(type, pa.BaseExtensionType):
        return pa.float64() if getattr(type, "type_name", "") == "numeric" else type.storage_type
    return pa.string() if pa.types.is_large_string(type) else type


def _of_value(database: Connections, rows: Any, name: str) -> Any:
    """Return the type of one value, for a database whose values have types and whose columns do
    not."""
    column: sa.ColumnClause[Any] = sa.column(name)
    some = sa.select(column).select_from(rows).where(column.is_not(None)).limit(1)
    found = database.execute(some)
    return found.schema.field(0).type if len(found) else pa.null()


def _tables(database: Connections, rows: Any) -> str:
    """Return a hint with the existing tables, for the message about a missing table."""
    if not isinstance(rows, sa.TableClause):
        return ""
    try:
        named = database.execute(_tables_there(database.backend), most=_TABLES + 1)
    except DataError:
        return ""
    pairs = zip(*(column.to_pylist() for column in named.columns), strict=True)
    found = [f"{schema}.{name}" if schema else str(name) for schema, name in pairs]
    if rows.fullname in {*found, *(each.rpartition(".")[2] for each in found)}:
        return ""
    more = ", ..." if len(found) > _TABLES else ""
    shown = f"tables: {', '.join(found[:_TABLES])}{more}"
    return f"; {shown if found else 'this user sees no tables'}"


def _tables_there(backend: str) -> sa.Select[Any]:
    """Return a query for schema and name of all tables and views; the default schema is empty."""
    if backend == "sqlite":
        shown, source, ours = "'', name", "sqlite_master", "type IN ('table', 'view')"
    else:
        shown, source = "table_schema, table_name", "information_schema.tables"
        ours = f"table_schema NOT IN ({_SYSTEM})"
    found = sa.select(sa.text(shown)).select_from(sa.text(source)).where(sa.text(ours))
    return found.order_by(sa.text("1, 2")).limit(_TABLES + 1)
