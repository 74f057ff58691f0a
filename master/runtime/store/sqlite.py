"""A store in an sqlite file, which the processes of one machine share."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch_edl.errors import StoreConflictError
from torch_edl.interfaces import Entry, Store

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER);
CREATE TABLE IF NOT EXISTS newest (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER);
INSERT OR IGNORE INTO newest VALUES (1, 0);
"""
_BUSY_S = 10.0


class SqliteStore(Store):
    """A :class:`~torch_edl.interfaces.Store` in a file, which is created if missing."""

    lock_ttl_s = 3.0

    def __init__(self, path: str | Path) -> None:
        self._mutex = threading.Lock()
        self._path = str(path)
        try:
            # isolation_level None: _transaction begins transactions explicitly.
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # With a write-ahead log, readers do not wait. FULL forces each write to the disk (2 ms
            # instead of 0.2, measured): journals are removed after these writes, so a loss of power
            # must not undo them.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def get(self, key: str) -> Entry | None:
        with self._transaction() as db:
            return _entry(db, key)

    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        with self._transaction() as db:
            _compare(db, expected)
            db.execute("UPDATE newest SET revision = revision + 1")
            (newest,) = db.execute("SELECT revision FROM newest").fetchone()
            rows = [(key, value, newest) for key, value in puts.items()]
            db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
            return int(newest)

    def clear(self, expected: Mapping[str, int]) -> None:
        with self._transaction() as db:
            _compare(db, expected)
            db.execute("DELETE FROM entries")

    def close(self) -> None:
        with self._mutex:
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            # IMMEDIATE: what is read here cannot change before the write.
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise OSError(f"{self._path}: {error}") from error
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise OSError(f"{self._path}: {error}") from error
                raise


def _compare(db: sqlite3.Connection, expected: Mapping[str, int]) -> None:
    for key, revision in expected.items():
        entry = _entry(db, key)
        found = 0 if entry is None else entry.revision
        if found != revision:
            raise StoreConflictError(f"{key}: has revision {found}, expected was {revision}")


def _entry(db: sqlite3.Connection, key: str) -> Entry | None:
    row = db.execute("SELECT value, revision FROM entries WHERE key=?", (key,)).fetchone()
    return None if row is None else Entry(bytes(row[0]), int(row[1]))
