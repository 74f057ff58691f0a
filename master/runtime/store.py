"""The store of a job's state: an sqlite file, and the lock of any store, which lets one master at
a time write.

The token of a lock is the revision of its key. Each write names the token, so an owner that was
paused until its lock expired cannot overwrite the writes of its successor. Each write also names
the previous write, so a delayed write cannot overwrite a newer one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.interfaces import Entry, Store
from torch_edl.processes.process_group import start_time

_LOCK, _BEAT = "lock", "beat"
# Seconds between two attempts to acquire the lock, and between two renewals of it.
_POLL_S = 0.2
RENEW_S = 1.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER);
CREATE TABLE IF NOT EXISTS newest (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER);
INSERT OR IGNORE INTO newest VALUES (1, 0);
"""
_BUSY_S = 10.0
log = logging.getLogger(__name__)


def seconds_since_boot() -> float:
    """Return the seconds since the machine booted, including the time in which it was suspended.
    ``time.monotonic`` does not count that time: after its machine has resumed, an owner would
    believe that it still has the lock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lock:
    """The lock of a store, as one contender sees it. Only :meth:`put` is thread-safe.

    An owner's lock has expired when a contender has seen no renewal for the lifetime of the lock.
    Neither the owner's clock nor the store's is used.

    Args:
        owner: unique name of the contender; not empty.
        clock: monotonic clock in seconds, which does not stop while the machine is suspended.
    """

    def __init__(
        self, store: Store, owner: str, *, clock: Callable[[], float] = seconds_since_boot
    ) -> None:
        self.store = store
        self.token = 0
        """Revision of the lock's key, which fences writes; 0 before :meth:`acquire`."""
        self.valid_until = 0.0
        """Time on the clock before which no other owner can have the lock."""
        self._owner = owner
        self._mutex = threading.Lock()  # serializes the writes of the owner
        self._beat = 0  # revision of the last write
        self._unanswered = False  # a write failed, so the revision is uncertain
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0

    def acquire(self, *, is_dead: Callable[[str], bool] = lambda owner: False) -> None:
        """Acquire the lock.

        Args:
            is_dead: returns whether an owner is known to have exited; its lock is taken at once.

        Raises:
            StoreConflictError: another owner has the lock; the call can be repeated.
        """
        began = self._clock()
        lock, beat = self.store.get(_LOCK), self.store.get(_BEAT)
        holder = lock.value.decode() if lock is not None else ""
        seen = (lock.revision if lock else 0, beat.revision if beat else 0)
        if holder not in ("", self._owner) and not is_dead(holder):
            if seen != self._seen:
                self._seen, self._seen_at = seen, began
            if began - self._seen_at < self.store.lock_ttl_s:
                raise StoreConflictError(f"the lock is held by {holder}")
        self.token = self.store.commit(
            {_LOCK: self._owner.encode()}, {_LOCK: seen[0], _BEAT: seen[1]}
        )
        self._beat, self._unanswered = seen[1], False
        self.valid_until = began + self.store.lock_ttl_s

    @property
    def is_certain(self) -> bool:
        """True if no other owner can have the lock now; False if only the store knows."""
        return self._clock() < self.valid_until

    @property
    def is_due(self) -> bool:
        """True if the lock must be renewed by now."""
        return self._clock() >= self.valid_until - self.store.lock_ttl_s + self.store.renew_s

    def put(self, puts: Mapping[str, bytes]) -> None:
        """Renew the lock, and write keys, if any. Raises StoreConflictError, and writes nothing, if
        another owner has it."""
        with self._mutex:
            began = self._clock()
            self._beat = self._write({_BEAT: b"", **puts})
            self.valid_until = began + self.store.lock_ttl_s

    def _write(self, puts: Mapping[str, bytes]) -> int:
        while True:
            if self._unanswered:
                beat = self.store.get(_BEAT)
                self._beat = beat.revision if beat is not None else 0
            self._unanswered = True
            try:
                written = self.store.commit(puts, {_LOCK: self.token, _BEAT: self._beat})
            except StoreConflictError:
                lock = self.store.get(_LOCK)
                if lock is None or lock.revision != self.token:
                    raise
                continue  # an unanswered write has taken effect meanwhile
            self._unanswered = False
            return written

    def release(self) -> None:
        """Release the lock; StoreConflictError if another owner has it."""
        self.store.commit({_LOCK: b""}, {_LOCK: self.token})

    def clear(self) -> None:
        """Remove all keys, including the lock. Raises StoreConflictError, and removes nothing, if
        another owner has it."""
        self.store.clear({_LOCK: self.token})

    def close(self, *, over: bool = False) -> None:
        """Release the lock, or remove all keys if ``over``, and close the store."""
        try:
            if over:
                self.clear()
            else:
                self.release()
        except (OSError, StoreConflictError) as error:  # the lock of a dead owner expires
            log.warning("cannot release the lock of the job, which expires: %s", error)
        self.store.close()


def acquire(
    store: Store,
    name: str,
    *,
    clock: Callable[[], float] = seconds_since_boot,
    sleep: Callable[[float], None] = time.sleep,
) -> Lock:
    """Acquire the lock of the job. Waits for the lock of a dead owner to expire, unless the owner
    was a process of this machine that is known to have exited.

    Raises:
        UsageError: another master of this job is running.
    """
    owner = f"{_machine()}/{os.getpid()}/{start_time(os.getpid())}"
    lock = Lock(store, owner, clock=clock)
    give_up = math.inf
    while True:
        asked = clock()
        try:
            lock.acquire(is_dead=_is_dead)
            return lock
        except StoreConflictError as error:
            if asked >= give_up:
                raise UsageError(
                    f"--job-name {name}: another master of this job is running ({error}); "
                    "choose another name, or stop that job"
                ) from error
            # One period after the first look, plus a renewal that an owner may have made just
            # before its death.
            give_up = min(give_up, clock() + store.lock_ttl_s + RENEW_S)
            sleep(_POLL_S)


def _machine() -> str:
    """Return an id of the scope in which a pid is unique: machine, boot and container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()}:{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


def _is_dead(owner: str) -> bool:
    """Return whether the owner of a lock was a process of this machine that has exited."""
    machine, _, process = owner.partition("/")
    pid, _, started = process.partition("/")
    here = machine == _machine() and pid.isdecimal()
    return here and start_time(int(pid)) != int(started)


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
            # The file may be on a volume that the masters of two nodes use for a moment. A
            # write-ahead log needs memory that its users share: without it, both masters would get
            # the lock, and each would undo the writes of the other. In the mode TRUNCATE, sqlite
            # also forces the end of a transaction to the disk: journals of servers are removed
            # after these writes, so a loss of power must not undo them.
            # https://sqlite.org/wal.html#noshm
            self._connection.execute("PRAGMA journal_mode=TRUNCATE")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
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
