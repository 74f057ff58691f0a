"""The journal of a shard: every change since its newest snapshot, on a disk, in the order of the
changes.

The folder of the owner (:mod:`.ownership`) holds segments of records (:mod:`.segments`), and a
folder ``snapshot-NUMBER`` with the state after the record of that number. A snapshot appears by one
rename; the segments that it covers are deleted afterwards.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch_edl.config.durability import FSYNC_MODES
from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.files import rename, sync
from torch_edl.ps_server.identity import JournalIdentity
from torch_edl.ps_server.journal import segments
from torch_edl.ps_server.journal.ownership import Ownership
from torch_edl.ps_server.journal.segments import Damage, Segment, SegmentWriter
from torch_edl.ps_server.records import LogEntry, Record

log = logging.getLogger(__name__)

FSYNC_INTERVAL_S = 1.0
SEGMENT_BYTES = 64 << 20
_SNAPSHOT = re.compile(r"snapshot-(\d{20})")
_TEMPORARY = ".snapshot"


@dataclass(frozen=True)
class Base:
    """The state that the records continue."""

    sequence: int = 0
    """Number of the last record in the base."""
    path: Path | None = None
    """Folder of the snapshot; None for the initial state of a server."""


class Journal:
    """The journal in a folder, taken over from an earlier server or begun.

    Read :meth:`records` to the end before the first :meth:`append`.

    Args:
        incarnation: incarnation of this server, unique in the job.
        fsync: when records are forced to the disk: ``never`` (by the kernel), ``interval`` (each
            second), ``always`` (before they are acknowledged, once for all that wait). They always
            survive the death of the process, with ``always`` also that of the machine.
        on_lost: called once, with the reason, when this journal can never acknowledge again: a
            later server has taken over, or the disk lost data. The process must end.
        repair: skip records that cannot be read, and read those behind them.

    Raises:
        StaleIncarnationError: a later server has taken over.
        UsageError: the folder holds another journal, or cannot be used.
        JournalDamagedError: the description of the journal is damaged.
    """

    def __init__(
        self,
        root: Path,
        identity: JournalIdentity,
        incarnation: int,
        *,
        fsync: str = "interval",
        on_lost: Callable[[str], None] = lambda reason: None,
        repair: bool = False,
    ) -> None:
        assert fsync in FSYNC_MODES, fsync
        self._repair = repair
        self.damage = Damage()
        """Records that the first :meth:`records` skipped."""
        self._identity = identity
        self._incarnation = incarnation
        self._fsync = fsync
        self._on_lost = on_lost
        self._lost = ""
        try:
            self._owner = Ownership(root, identity, incarnation)
            self.folder = self._owner.folder
            with self._gone_means_lost():
                self.base = self._tidy()
        except OSError as error:
            raise UsageError(
                f"--journal {root}: {error.strerror} ({error.filename}); name a folder that this "
                "user may write to, on a disk with room"
            ) from error
        self._write_lock = threading.Lock()  # guards the fields below and serializes writes
        self._writer: SegmentWriter | None = None
        self._unsynced: list[SegmentWriter] = []  # complete, possibly not on the disk
        self._listed: SegmentWriter | None = None  # segment whose name is on the disk
        self._last = self.base.sequence
        self._read = False
        self.bytes = 0
        """Bytes of all records since the base."""
        self.problem = ""
        """Reason why the last append failed; empty if it succeeded."""
        self._commit_lock = threading.Lock()  # held by the thread that commits
        self._durable = self.base.sequence
        self._sync_lock = threading.Lock()  # held while files are forced to the disk
        self._base_lock = threading.RLock()  # held while base and records must not be removed
        self._closing = threading.Event()
        self._syncer = threading.Thread(target=self._sync_regularly, name="journal", daemon=True)
        if fsync == "interval":
            self._syncer.start()

    def _tidy(self) -> Base:
        """Return the newest snapshot, and remove leftovers of a crash and covered segments."""
        found = [Base()]
        for path in self.folder.iterdir():
            match = _SNAPSHOT.fullmatch(path.name)
            if match:
                found.append(Base(int(match[1]), path))
            elif path.name.startswith(_TEMPORARY):
                shutil.rmtree(path)
        found.sort(key=lambda base: base.sequence)
        for base in found[:-1]:
            if base.path:
                shutil.rmtree(base.path)
        for segment in segments.chain(self.folder, found[-1].sequence)[1]:
            segment.path.unlink()
        return found[-1]

    forces = True
    """True: the files of a snapshot are forced to the disk before it is committed."""
    needs_base = False
    """False: only the size of the log makes a snapshot necessary."""

    @property
    def last(self) -> int:
        """Number of the last record; 0 before the first."""
        return self._last

    # ---- reading ----

    def records(self, after: int | None = None) -> Iterator[Record]:
        """Yield the current records since the base, or after number ``after``.

        Raises:
            JournalDamagedError: a record is damaged or missing; the message names it, and the
                number of records behind it.
            UsageError: a segment is of another journal.
        """
        begin = self.base.sequence if after is None else after
        with self._write_lock:
            stop = self._last if self._read else None
        sequence = begin
        with self._gone_means_lost():
            used, _ = segments.chain(self.folder, begin)
            for record in self._read_chain(used, begin):
                if stop is not None and record.sequence > stop:
                    break
                sequence = record.sequence
                yield record
        if not self._read:
            with self._write_lock:
                self._last = self._durable = sequence
                self.bytes = sum(s.path.stat().st_size for s in used)
                self._read = True

    def _read_chain(self, used: Sequence[Segment], after: int) -> Iterator[Record]:
        if self._repair:
            damage = Damage() if self._read else self.damage
            yield from segments.read(used, self._identity, after, damage)
            return
        try:
            yield from segments.read(used, self._identity, after)
        except JournalDamagedError as error:
            damage = Damage()
            for _ in segments.read(used, self._identity, after, damage):
                pass
            raise JournalDamagedError(
                f"{damage.text}; a job with --repair leaves out what cannot be read, and goes on"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[tuple[Base, Iterator[Record]]]:
        """Yield the base and an iterator of the records since. No snapshot replaces them until the
        block ends."""
        with self._base_lock:
            yield self.base, self.records()

    # ---- appending ----

    def append(self, entry: LogEntry) -> int:
        """Append an entry, see :meth:`torch_edl.ps_server.records.Sink.append`."""
        with self._write_lock:
            return self._append(self._last + 1, entry)

    def append_record(self, sequence: int, entry: LogEntry) -> None:
        """Append the next record of another journal; a record that is already there is ignored.

        Raises:
            UsageError: records between the last one and this one are missing.
            OSError: see :meth:`append`.
        """
        with self._write_lock:
            if sequence > self._last + 1:
                raise UsageError(
                    f"record {sequence}: the journal ends with record {self._last}; send "
                    "the records in between first"
                )
            if sequence == self._last + 1:
                self._append(sequence, entry)

    def _append(self, sequence: int, entry: LogEntry) -> int:
        assert self._read, "read the journal to its end first"
        self._require_kept()
        try:
            if self._writer is None or self._writer.size >= SEGMENT_BYTES:
                self._rotate()
                segment = Segment.named(self.folder, sequence, self._incarnation)
                self._writer = SegmentWriter(segment, self._identity)
            before = self._writer.size
            self._writer.append(sequence, entry)
        except OSError as error:
            self._require_owned()
            self.problem = f"journal: {error.strerror}: {self.folder}"
            raise OSError(
                error.errno, f"{self.problem}; the change was not made and may be repeated"
            ) from error
        self.problem = ""
        self.bytes += self._writer.size - before
        self._last = sequence
        return sequence

    def _rotate(self) -> None:
        if self._writer is not None:
            self._unsynced.append(self._writer)
            self._writer = None

    def rotate(self) -> int:
        """End the segment, so that a snapshot can cover it. Returns the number of the last
        record."""
        with self._write_lock:
            self._rotate()
            return self._last

    # ---- durability ----

    @property
    def is_slow(self) -> bool:
        """True with ``fsync`` ``always``; see :attr:`torch_edl.ps_server.records.Sink.is_slow`."""
        return self._fsync == "always"

    def wait_durable(self, sequence: int) -> None:
        """Wait for durability, see :meth:`torch_edl.ps_server.records.Sink.wait_durable`."""
        while self._durable < sequence:
            # One thread commits for all that wait here.
            with self._commit_lock:
                if self._durable < sequence:
                    self._commit()

    def _commit(self) -> None:
        self._require_kept()
        last = self._last
        if self._fsync == "always":
            self.sync()
            self._require_kept()
        self._require_owned()
        self._durable = last

    def _require_kept(self) -> None:
        if self._lost:
            raise StaleIncarnationError(self._lost)

    def _require_owned(self) -> None:
        try:
            self._owner.check()
        except StaleIncarnationError as error:
            self._lose(str(error))
            raise

    @contextmanager
    def _gone_means_lost(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            self._require_owned()
            raise

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = reason
            log.critical("%s", reason)
            self._on_lost(reason)

    def sync(self) -> None:
        """Force to the disk what was appended before the call.

        Raises:
            OSError: the disk lost a part of it. The kernel reports this once, so the first caller
                has to end the journal: the next call would succeed.
            StaleIncarnationError: a later server has taken over.
        """
        with self._sync_lock:
            try:
                self._sync()
            except OSError as error:
                self._require_owned()
                self._lose(f"journal: {error.strerror}: {self.folder}")
                raise

    def _sync(self) -> None:
        with self._write_lock:
            complete, self._unsynced = self._unsynced, []
            current = self._writer
        for writer in complete:
            writer.sync()
            writer.close()
        if current is not None:
            current.sync()
        if current is not self._listed:
            sync(self.folder)
            self._listed = current

    def _sync_regularly(self) -> None:
        synced = self._last
        while not self._closing.wait(FSYNC_INTERVAL_S):
            last = self._last
            if last != synced:
                try:
                    self.sync()
                except (OSError, StaleIncarnationError):
                    return  # the process ends
                synced = last

    def close(self) -> None:
        """Force everything to the disk. Later appends fail."""
        self._closing.set()
        if self._syncer.is_alive():
            self._syncer.join()
        with self._write_lock:
            self._lost = self._lost or "this server stops; ask the master for the servers"
            self._rotate()
        self.sync()

    # ---- snapshots ----

    @contextmanager
    def new_base(self) -> Iterator[Path]:
        """Yield a new folder for a snapshot, which is removed at the end unless it was
        committed."""
        path = self.folder / f"{_TEMPORARY}-{self._incarnation}-{os.urandom(4).hex()}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def commit_snapshot(self, temporary: Path, sequence: int, newest: int = 0) -> None:
        """Make a folder, whose files are on the disk, the base, and delete what it covers.

        Args:
            sequence: number of the last record in the snapshot. A received snapshot may be ahead of
                all records here.
            newest: number of the last record that a part of the snapshot contains.

        Raises:
            StaleIncarnationError: a later server has taken over.
            OSError: a write failed.
        """
        if newest > sequence:
            self.wait_durable(newest)
        self.sync()
        path = self.folder / f"snapshot-{sequence:020d}"
        with self._base_lock:
            self._require_owned()
            if path == self.base.path:  # unchanged since the last snapshot
                shutil.rmtree(temporary)
                return
            rename(temporary, path)
            with self._write_lock:
                old, self.base = self.base, Base(sequence, path)
                used, covered = segments.chain(self.folder, sequence)
                if sequence >= self._last:
                    self._rotate()
                    covered += used
                    used = []
                    self._last = self._durable = sequence
                self.bytes = sum(s.path.stat().st_size for s in used)
            for segment in covered:
                segment.path.unlink()
            if old.path:
                shutil.rmtree(old.path)
