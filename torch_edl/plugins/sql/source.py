"""Tables and queries of SQL databases: a record is a row, by its position in the order of a key.

Opening pages through the keys (keyset paging, one page per statement), and keeps the first key, the
last key and a digest of all keys of each block of rows. Rows are read by a range of keys, for which
the database uses an index. A block whose keys have changed since raises an error.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from torch_edl.data.sources.base import cut
from torch_edl.data.sources.files.blocks import cache, source_numbers
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Metadata, Records, UrlSource
from torch_edl.plugins.sql.connection import Connections, check_connection
from torch_edl.plugins.sql.name import SqlName, parse, pinned

_TABLES = 20  # maximum number of tables that a message names
_SYSTEM = "'information_schema', 'pg_catalog', 'mysql', 'performance_schema', 'sys'"

BLOCK_ROWS = 2048
"""Rows per block. A block has one digest, and is the smallest unit that is read."""

PAGE_BLOCKS = 256
"""Blocks of keys per statement while the rows are counted."""

_DIGEST_BYTES = 8


def rows_of(name: SqlName) -> Any:
    """Return the table or query as a part of a statement."""
    if name.query:
        # The colons of the user's text (casts, times) are no parameters. The line break ends a
        # comment.
        return sa.text("(" + name.query.replace(":", r"\:") + "\n) AS records")
    schema, _, table = name.table.rpartition(".")
    return sa.table(table, schema=schema or None)


def columns(database: Connections, name: SqlName) -> pa.Schema:
    """Return the columns of the table or query; raise DataError if there is no suitable key. If the
    database has no types for the columns, the types are those of an arbitrary row."""
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
    """Return the :func:`columns` with the types that ``feed`` receives."""
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


class SqlSource(UrlSource):
    """The rows of a table or query, in the order of their key.

    The name of the source has the largest key and a digest of the keys that were counted. Rows that
    are added after that key later do not belong to the source.
    """

    def __init__(self, name: str, *, skip_damaged: bool = False) -> None:
        wanted = parse(name)
        self.name = str(wanted)
        self.damaged = 0
        self._database = Connections(wanted)
        self._rows = rows_of(wanted)
        self._schema = schema_of(self._database, wanted)
        self._is_text = not pa.types.is_integer(self._schema.field(wanted.key).type)
        self._key: sa.ColumnClause[Any] = sa.column(
            wanted.key, sa.String() if self._is_text else sa.BigInteger()
        )
        low, high = (sa.bindparam(name, type_=self._key.type) for name in ("low", "high"))
        self._range = (
            sa.select(sa.text("*"))
            .select_from(self._rows)
            .where(self._key >= low, self._key <= high)
            .order_by(self._key)
        )
        self._bounds: list[tuple[Any, Any]] = []
        # The first row of each block, and the end of the last block.
        self._begins: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._digests: list[bytes] = []
        self.count = 0
        self._refuse_null()
        self._count(wanted.last)
        keys = hashlib.blake2b(b"".join(self._digests), digest_size=_DIGEST_BYTES).hexdigest()
        if wanted.keys not in ("", keys):
            raise self._changed()
        if self.count:
            self.name = str(pinned(wanted, str(self._bounds[-1][1]), keys))
        self.metadata = Metadata.of(self.name, self._schema)
        self._number = next(source_numbers)

    @classmethod
    def canonical(cls, url: str) -> str:
        return str(parse(url))

    @classmethod
    def check(cls, url: str) -> None:
        name = parse(url)
        check_connection(name)
        columns(Connections(name), name)

    def read(self, start: int, end: int) -> Records:
        """Return the rows ``start .. end - 1``, in the order of the key, as a ``pyarrow.Table``;
        raise DataError if rows among them were added or deleted since they were counted."""
        if not 0 <= start <= end <= self.count:
            raise DataError(self.name, f"asked for records {start} to {end} of {self.count}")
        if start == end:
            return self._schema.empty_table()
        first = int(self._begins.searchsorted(start, side="right")) - 1
        last = int(self._begins.searchsorted(end, side="left")) - 1
        begin = int(self._begins[first])
        key, count = (self._number, first), end - start
        rows = cache.take(key, count) if first == last else None
        if rows is None:
            rows = self._blocks(first, last)
            if first == last:  # other tasks may read the rest of the block
                cache.put(key, rows, len(rows) - count)
        return cut(rows, start - begin, end - begin)

    def _blocks(self, first: int, last: int) -> pa.Table:
        bounds = {"low": self._bounds[first][0], "high": self._bounds[last][1]}
        begins = self._begins[first : last + 2].tolist()
        expected = begins[-1] - begins[0]
        found = self._database.execute(self._range, most=expected + 1, **bounds)
        table = self._cast(found, self._schema)
        keys = table.column(self._key.name)
        digests = [
            _digest(keys.slice(start - begins[0], end - start))
            for start, end in itertools.pairwise(begins)
        ]
        if len(table) != expected or digests != self._digests[first : last + 1]:
            raise self._changed()
        return table

    def _changed(self) -> DataError:
        return DataError(
            self.name,
            "rows were added or deleted among those that the job counted; start the job again, "
            "and let rows that come later have greater keys",
        )

    # ---- opening ----

    def _cast(self, table: Any, schema: pa.Schema) -> Any:
        if table.schema.equals(schema):
            return table
        # A column of NULLs has an arbitrary type if the database has no types for columns.
        columns = [
            pa.chunked_array([pa.nulls(len(column), type)])
            if column.null_count == len(column)
            else column
            for column, type in zip(table.columns, schema.types, strict=True)
        ]
        try:
            return pa.Table.from_arrays(columns, names=table.column_names).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                self.name, f"values of different types in a column: {error}; use CAST in a query"
            ) from error

    def _count(self, last: str) -> None:
        lengths = []
        for block in self._key_blocks(last):
            lengths.append(len(block))
            self._digests.append(_digest(block))
            self._bounds.append((block[0].as_py(), block[-1].as_py()))
        self._begins = np.cumsum([0, *lengths])
        self.count = int(self._begins[-1])

    def _key_blocks(self, last: str) -> Iterator[Any]:
        if pa.types.is_null(self._schema.field(self._key.name).type):
            return  # no values: either no rows or no keys
        page = BLOCK_ROWS * PAGE_BLOCKS
        statement = sa.select(self._key).select_from(self._rows).order_by(self._key).limit(page + 1)
        values: dict[str, Any] = {}
        if last:
            statement = statement.where(self._key <= sa.bindparam("last", type_=self._key.type))
            values["last"] = self._value(last)
        onward = statement.where(self._key >= sa.bindparam("next", type_=self._key.type))
        keys = self._page(statement, values)
        while len(keys):
            # The last key is also the first of the next page, so that a key in both pages is
            # noticed.
            for start in range(0, min(len(keys), page), BLOCK_ROWS):
                yield keys.slice(start, min(BLOCK_ROWS, page - start))
            if len(keys) <= page:
                return
            keys = self._page(onward, {**values, "next": keys[-1].as_py()})

    def _page(self, statement: sa.Select[Any], values: dict[str, Any]) -> Any:
        schema = pa.schema([self._schema.field(self._key.name)])
        keys = self._cast(self._database.execute(statement, **values), schema).column(0)
        keys = keys.combine_chunks()
        twice = keys[1:].filter(pc.equal(keys[1:], keys[:-1]))
        if len(twice):
            raise DataError(
                self.name,
                f"the key {self._key.name!r} has the value {twice[0].as_py()!r} more than once; "
                "name a column of which each value is there once",
            )
        return keys

    def _refuse_null(self) -> None:
        some = sa.select(self._key).select_from(self._rows).where(self._key.is_(None)).limit(1)
        if len(self._database.execute(some)):
            raise DataError(self.name, f"the key {self._key.name!r} is NULL in some rows")

    def _value(self, text: str) -> int | str:
        if self._is_text:
            return text
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{self.name}: last={text}: expected an integer") from None


def _digest(keys: Any) -> bytes:
    if pa.types.is_integer(keys.type):
        return _hashed(np.ascontiguousarray(keys.to_numpy(), "<i8"))
    return _hashed("\0".join(keys.to_pylist()).encode())


def _hashed(content: Any) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
