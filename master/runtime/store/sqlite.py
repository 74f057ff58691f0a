"""A store in one file, shared by the processes of a machine."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from torch_edl.errors import StoreConflictError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER);
CREATE TABLE IF NOT EXISTS lock (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT, token INTEGER, until REAL, revision INTEGER
);
INSERT OR IGNORE INTO lock VALUES (1, '', 0, 0, 0);
"""
_BUSY_S = 10.0


class SqliteStore:
    """Implements :class:`master.runtime.store.base.Store` with a sqlite file.

    Raises:
        OSError: the file cannot be opened, or is no database.
    """

    def __init__(self, path: str | Path) -> None:
        self._mutex = threading.Lock()
        self._path = str(path)
        try:
            # isolation_level None: transactions are written out below, where they begin.
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # With a write-ahead log readers do not wait, and a crash of the process loses nothing.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def acquire(self, owner: str, ttl_s: float, now: float, *, instead_of: str = "") -> int:
        """See :class:`Store`."""
        with self._transaction() as db:
            holder, token, until = db.execute("SELECT owner, token, until FROM lock").fetchone()
            if holder != owner:
                if holder not in ("", instead_of) and now < until:
                    raise StoreConflictError(f"{self._path}: the lock is held by {holder}")
                token += 1
            db.execute("UPDATE lock SET owner=?, token=?, until=?", (owner, token, now + ttl_s))
            return int(token)

    def holder(self) -> str:
        """See :class:`Store`."""
        with self._transaction() as db:
            (owner,) = db.execute("SELECT owner FROM lock").fetchone()
        return str(owner)

    def release(self, token: int) -> None:
        """See :class:`Store`."""
        with self._transaction() as db:
            db.execute("UPDATE lock SET owner='' WHERE token=?", (token,))

    def get(self, key: str) -> tuple[bytes, int] | None:
        """See :class:`Store`."""
        with self._transaction() as db:
            row = db.execute("SELECT value, revision FROM entries WHERE key=?", (key,)).fetchone()
        return None if row is None else (bytes(row[0]), int(row[1]))

    def put(self, key: str, value: bytes, expected_revision: int, *, token: int) -> int:
        """See :class:`Store`."""
        with self._transaction() as db:
            self._check(db, key, expected_revision, token)
            db.execute("UPDATE lock SET revision = revision + 1")
            (revision,) = db.execute("SELECT revision FROM lock").fetchone()
            db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, revision))
            return int(revision)

    def close(self) -> None:
        """Closes the file."""
        with self._mutex:
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            # IMMEDIATE: what is read here cannot change before it is written.
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

    @staticmethod
    def _check(db: sqlite3.Connection, key: str, expected_revision: int, token: int) -> None:
        owner, newest = db.execute("SELECT owner, token FROM lock").fetchone()
        if token != newest or not owner:
            raise StoreConflictError(f"{key}: token {token} is stale, the newest is {newest}")
        row = db.execute("SELECT revision FROM entries WHERE key=?", (key,)).fetchone()
        revision = 0 if row is None else row[0]
        if revision != expected_revision:
            raise StoreConflictError(
                f"{key}: has revision {revision}, expected was {expected_revision}"
            )
