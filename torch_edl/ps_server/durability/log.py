"""The log of a shard: every change since its newest snapshot, in the order of the changes.

The log numbers the changes, knows the base that they continue, and says when a change is durable.
Records and base are kept at a :class:`Place`: a disk or a peer server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch_edl.errors import JournalDamagedError, UsageError
from torch_edl.ps_server.durability.records import HEAD_BYTES, LogEntry, Record


@dataclass(frozen=True)
class Base:
    """The state that the records continue."""

    sequence: int = 0
    """Number of the last record in the base."""
    path: Path | None = None
    """Folder of the snapshot; None for the initial state of a server."""


@dataclass
class Damage:
    """Unreadable records of a log."""

    first: str = ""
    """Name of the first unreadable record, and the reason; empty if all can be read."""
    lost: int = 0
    """Number of unreadable records that have readable ones behind them."""
    intact: int = 0
    """Number of readable records behind the first unreadable one."""
    at_end: int = 0
    """Minimum number of unreadable records behind the last readable one."""

    def note(self, error: JournalDamagedError) -> None:
        """Record an error, if it is the first."""
        self.first = self.first or str(error)

    def passed(self, missing: int) -> None:
        """Count a record that was read after ``missing`` unreadable ones."""
        self.lost += missing
        self.intact += bool(self.first)

    def forget(self) -> None:
        """Reset the counts: this damage was reported before."""
        self.first, self.lost, self.intact = "", 0, 0

    @property
    def text(self) -> str:
        """Summary for a message; empty if all records can be read."""
        if not self.first:
            return ""
        lost = self.lost + self.at_end
        count = "1 record" if lost == 1 else f"{lost:,} records"
        least = "at least " if self.at_end else ""
        return f"{self.first}; {least}{count} cannot be read, {self.intact:,} behind can be"


class Place(Protocol):
    """Where a log is kept. Only the log reads and writes, one record at a time."""

    @property
    def damage(self) -> Damage:
        """Records that the first :meth:`read` skipped."""

    @property
    def problem(self) -> str:
        """Reason why changes are not accepted or not acknowledged at present; empty if they are."""

    @property
    def is_slow(self) -> bool:
        """True if :meth:`commit` waits for a disk or a peer."""

    @property
    def forces(self) -> bool:
        """True if the files of a base are forced to the disk."""

    @property
    def needs_base(self) -> bool:
        """True if a snapshot is needed regardless of the size of the log."""

    def take_over(self) -> Base:
        """Exclude earlier servers of the shard, and return the base that they left.

        Raises:
            StaleIncarnationError: a later server has taken over.
            StateLostError: their base is not reachable.
        """

    def read(self, after: int) -> Iterator[Record]:
        """Yield the records after number ``after``."""

    def begin(self, last: int) -> None:
        """Accept records: all up to number ``last`` were read."""

    def write(self, sequence: int, entry: LogEntry) -> None:
        """Append the record of that number; see :meth:`ChangeLog.append` for errors."""

    def holds(self, sequence: int) -> bool:
        """Return whether the record, and all before it, survive the loss of this process."""

    def commit(self, sequence: int) -> None:
        """Try to make the record durable, and with it all that were appended; see
        :meth:`ChangeLog.wait_durable` for errors."""

    def rotate(self) -> None:
        """Separate the records so far from later ones, so that a base can replace them."""

    def new_base(self) -> AbstractContextManager[Path]:
        """Return a context with a new folder for a base; the folder is removed at the end unless
        it was put."""

    def put_base(self, folder: Path, sequence: int) -> Path:
        """Keep a base durably, beside the old one. Returns its folder."""

    def drop(self, old: Base, sequence: int, *, whole: bool) -> None:
        """Delete the old base, and the records that the new one contains.

        Args:
            sequence: number of the last record in the new base.
            whole: True if the new base contains all records.
        """

    def close(self) -> None:
        """Make all records durable, and accept no more."""


class ChangeLog:
    """The log of one shard at a place, taken over from an earlier server or begun.

    Read :meth:`records` to the end before the first :meth:`append`.

    Raises:
        StaleIncarnationError: a later server has taken over.
        StateLostError, JournalDamagedError, UsageError: the place cannot be used.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.base = place.take_over()
        """State that the records continue."""
        self.last = self.base.sequence
        """Number of the last record that was read or appended; 0 before the first."""
        self.is_open = False
        """True once all records of an earlier server were read: changes are appended now."""
        self.bytes = 0
        """Bytes of all records since the base."""
        self._covered = 0  # value of `bytes` at the last rotation
        self._queued: list[LogEntry] = []
        self._order = threading.Lock()  # guards the fields above and serializes appends
        self._commit_lock = threading.Lock()  # held by the thread that commits
        self._base_lock = threading.Lock()  # held while the base is replaced

    # ---- reading ----

    def records(self, after: int | None = None) -> Iterator[Record]:
        """Yield the current records since the base, or after number ``after``.

        Raises:
            JournalDamagedError: a record is damaged or missing; the message names it, and the
                number of records behind it.
            StateLostError: the peer was lost meanwhile.
        """
        with self._order:
            stop = self.last if self.is_open else None
            if stop is None:
                self.last, self.bytes = self.base.sequence, 0
        for record in self.place.read(self.base.sequence if after is None else after):
            if stop is None:
                self.last = record.sequence
                self.bytes += HEAD_BYTES + len(record.payload)
            elif record.sequence > stop:
                break
            yield record
        if stop is None:
            self.place.begin(self.last)
            self.is_open = True

    # ---- appending ----

    def append(self, entry: LogEntry) -> int:
        """Append an entry, in the order of the calls. Returns the sequence number of the record.

        Raises:
            OSError: nothing was appended, and the change must not be made. The call may be
                repeated.
            StaleIncarnationError: another process has taken over the shard.
        """
        with self._order:
            while self._queued:
                self._write(self.last + 1, self._queued[0])
                del self._queued[0]
            self._write(self.last + 1, entry)
            return self.last

    def append_before_next(self, entry: LogEntry) -> None:
        """Append an entry together with the next one; no caller waits for its change."""
        with self._order:
            self._queued.append(entry)

    def append_record(self, sequence: int, entry: LogEntry) -> None:
        """Append the next record of another log; a record that is already there is ignored.

        Raises:
            UsageError: records between the last one and this one are missing.
            OSError: see :meth:`append`.
        """
        with self._order:
            if sequence > self.last + 1:
                raise UsageError(
                    f"record {sequence}: the log ends with record {self.last}; send the records "
                    "in between first"
                )
            if sequence == self.last + 1:
                self._write(sequence, entry)

    def _write(self, sequence: int, entry: LogEntry) -> None:
        assert self.is_open, "read the log to its end first"
        self.place.write(sequence, entry)
        self.bytes += HEAD_BYTES + entry.size
        self.last = sequence

    # ---- durability ----

    def wait_durable(self) -> None:
        """Wait until all records so far survive the loss of this process; only then is a change
        acknowledged.

        Raises:
            StaleIncarnationError: another process has taken over the shard; it decides whether the
                change was made.
            OSError: the log failed permanently.
        """
        sequence = self.last
        while not self.place.holds(sequence):
            # One thread commits for all that wait here.
            with self._commit_lock:
                if not self.place.holds(sequence):
                    self.place.commit(sequence)

    def close(self) -> None:
        """Make all records durable. Later appends fail."""
        self.place.close()

    # ---- snapshots ----

    def rotate(self) -> int:
        """Begin a snapshot of all records so far. Returns the number of the last one."""
        with self._order:
            self.place.rotate()
            self._covered = self.bytes
            return self.last

    def commit_snapshot(self, temporary: Path, sequence: int) -> None:
        """Make a folder the base, and delete what it covers.

        Args:
            sequence: number of the last record in the snapshot. A received snapshot may be ahead of
                all records here.

        Raises:
            StaleIncarnationError: a later server has taken over.
            OSError: a write failed, or the peer was lost; the base is the old one.
        """
        with self._base_lock:
            path = self.place.put_base(temporary, sequence)
            with self._order:
                old, self.base = self.base, Base(sequence, path)
                is_whole = sequence >= self.last
                self.last = max(self.last, sequence)
                self.bytes = 0 if is_whole else self.bytes - self._covered
                self._covered = 0
                if path != old.path:
                    self.place.drop(old, sequence, whole=is_whole)
