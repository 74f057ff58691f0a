"""Where the master keeps its state: a key-value store with compare-and-set and a lock with fencing.

What the state means is decided elsewhere; nothing here knows of tasks or workers.
"""

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


class Store:
    """Keys with revisions, and one lock, in a sqlite file that processes of a machine share.

    A writer must hold the lock, and shows the token that came with the lock. Tokens grow, and a
    write with a token that is not the newest is rejected: an owner that was stopped for longer than
    its lock lived cannot overwrite what its successor wrote. Thread-safe.

    Raises:
        OSError: the file cannot be opened, read or written, or is no database; any method may.
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
        """Takes or renews the lock until ``now + ttl_s``; a renewal keeps the token.

        Args:
            owner: unique among all that may ask.
            now: Unix time in seconds; the clocks of all that ask must agree within the ttl.
            instead_of: an owner that is known to be dead; its time is over.

        Returns:
            The token of the lock.

        Raises:
            StoreConflictError: another owner has the lock, and its time is not over.
        """
        with self._transaction() as db:
            holder, token, until = db.execute("SELECT owner, token, until FROM lock").fetchone()
            if holder != owner:
                if holder not in ("", instead_of) and now < until:
                    raise StoreConflictError(f"{self._path}: the lock is held by {holder}")
                token += 1
            db.execute("UPDATE lock SET owner=?, token=?, until=?", (owner, token, now + ttl_s))
            return int(token)

    def holder(self) -> str:
        """The last owner that took the lock and did not release it; empty: nobody."""
        with self._transaction() as db:
            (owner,) = db.execute("SELECT owner FROM lock").fetchone()
        return str(owner)

    def release(self, token: int) -> None:
        """Gives the lock back, if the token is still the newest."""
        with self._transaction() as db:
            db.execute("UPDATE lock SET owner='' WHERE token=?", (token,))

    def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and revision of a key; None if there is none."""
        with self._transaction() as db:
            row = db.execute("SELECT value, revision FROM entries WHERE key=?", (key,)).fetchone()
        return None if row is None else (bytes(row[0]), int(row[1]))

    def put(self, key: str, value: bytes, expected_revision: int, *, token: int) -> int:
        """Writes a key and returns its new revision, which is larger than all before it.

        Args:
            expected_revision: of :meth:`get`; 0 for a key that must not exist.

        Raises:
            StoreConflictError: the key has another revision, or the token is stale.
        """
        with self._transaction() as db:
            owner, newest = db.execute("SELECT owner, token FROM lock").fetchone()
            if token != newest or not owner:
                raise StoreConflictError(f"{key}: token {token} is stale, the newest is {newest}")
            row = db.execute("SELECT revision FROM entries WHERE key=?", (key,)).fetchone()
            revision = 0 if row is None else row[0]
            if revision != expected_revision:
                raise StoreConflictError(
                    f"{key}: has revision {revision}, expected was {expected_revision}"
                )
            db.execute("UPDATE lock SET revision = revision + 1")
            (revision,) = db.execute("SELECT revision FROM lock").fetchone()
            db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, revision))
            return int(revision)

    def close(self) -> None:
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
