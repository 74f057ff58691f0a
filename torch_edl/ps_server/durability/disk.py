"""A log on a disk: the journal of a shard.

The folder of the owner (:mod:`.identity`) holds segments of records (:mod:`.segments`), and a
folder ``snapshot-NUMBER`` with the state after the record of that number. A snapshot appears by one
rename; the segments that it covers are deleted afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch_edl.checkpoint.durable import rename, sync, sync_tree
from torch_edl.config.parts import FSYNC_MODES
from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.ps_server.durability import segments
from torch_edl.ps_server.durability.identity import JournalIdentity, Ownership
from torch_edl.ps_server.durability.log import Base, Damage
from torch_edl.ps_server.durability.records import LogEntry, Record
from torch_edl.ps_server.durability.segments import Segment, SegmentWriter

log = logging.getLogger(__name__)

FSYNC_INTERVAL_S = 1.0
SEGMENT_BYTES = 64 << 20
_SNAPSHOT = re.compile(r"snapshot-(\d{20})")
_TEMPORARY = ".snapshot"


class Disk:
    """The folder of a journal, see :class:`~torch_edl.ps_server.durability.log.Place`.

    Args:
        incarnation: incarnation of this server, unique in the job.
        fsync: when records are forced to the disk: ``never`` (by the kernel), ``interval`` (each
            second), ``always`` (before they are acknowledged, once for all that wait). They always
            survive the death of the process, with ``always`` also that of the machine.
        on_lost: called once, with the reason, when this journal can never acknowledge again: a
            later server has taken over, or the disk lost data. The process must end.
        repair: skip records that cannot be read, and read those behind them.
    """

    forces = True
    """True: the files of a snapshot are forced to the disk before it is committed."""
    needs_base = False
    """False: only the size of the log makes a snapshot necessary."""

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
        self._root, self._identity, self._incarnation = root, identity, incarnation
        self._fsync = fsync
        self._on_lost = on_lost
        self._repair = repair
        self.damage = Damage()
        """Records that the first :meth:`read` skipped."""
        self.problem = ""
        """Reason why the last append failed; empty if it succeeded."""
        self._lost = ""
        self._begun = False
        self._lock = threading.Lock()  # guards the fields below, and writes
        self._writer: SegmentWriter | None = None
        self._unsynced: list[SegmentWriter] = []  # complete, possibly not on the disk
        self._listed: SegmentWriter | None = None  # segment whose name is on the disk
        self._written = 0
        self._durable = 0
        self._sync_lock = threading.Lock()  # held while files are forced to the disk
        self._closing = threading.Event()
        self._syncer = threading.Thread(target=self._sync_regularly, name="journal", daemon=True)

    # ---- taking over ----

    def take_over(self) -> Base:
        """Take the folder over from an earlier server, or begin a journal in an empty folder."""
        try:
            self._owner = Ownership(self._root, self._identity, self._incarnation)
            self.folder = self._owner.folder
            with self._gone_means_lost():
                return self._tidy()
        except OSError as error:
            raise UsageError(
                f"--journal {self._root}: {error.strerror} ({error.filename}); name a folder that "
                "this user may write to, on a disk with room"
            ) from error

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

    def read(self, after: int) -> Iterator[Record]:
        """Yield the records after number ``after``; see :meth:`ChangeLog.records` for errors."""
        with self._gone_means_lost():
            used, _ = segments.chain(self.folder, after)
            yield from self._read_chain(used, after)

    def _read_chain(self, used: Sequence[Segment], after: int) -> Iterator[Record]:
        if self._repair:
            damage = Damage() if self._begun else self.damage
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

    def begin(self, last: int) -> None:
        """Accept records after number ``last``.

        Raises:
            OSError: the disk lost a part of what an earlier server had written.
        """
        if self._fsync != "never":
            # The kernel may hold what an earlier server wrote and did not live to force out.
            with self._gone_means_lost():
                sync_tree(self.folder)
        self._written = self._durable = last
        self._begun = True
        if self._fsync == "interval":
            self._syncer.start()

    # ---- appending ----

    def write(self, sequence: int, entry: LogEntry) -> None:
        """Append a record; see :meth:`ChangeLog.append` for errors."""
        with self._lock:
            self._require_kept()
            try:
                if self._writer is None or self._writer.size >= SEGMENT_BYTES:
                    self._rotate()
                    segment = Segment.named(self.folder, sequence, self._incarnation)
                    self._writer = SegmentWriter(segment, self._identity)
                self._writer.append(sequence, entry)
            except OSError as error:
                self._require_owned()
                self.problem = f"journal: {error.strerror}: {self.folder}"
                raise OSError(
                    error.errno, f"{self.problem}; the change was not made and may be repeated"
                ) from error
            self.problem = ""
            self._written = sequence

    def rotate(self) -> None:
        """End the segment, so that a snapshot can cover it."""
        with self._lock:
            self._rotate()

    def _rotate(self) -> None:
        if self._writer is not None:
            if self._fsync == "never":
                self._writer.close()
            else:
                self._unsynced.append(self._writer)
            self._writer = None

    # ---- durability ----

    @property
    def is_slow(self) -> bool:
        """True with ``fsync`` ``always``."""
        return self._fsync == "always"

    def holds(self, sequence: int) -> bool:
        """Return whether the record is durable, and this server owned the journal then."""
        return self._durable >= sequence

    def commit(self, sequence: int) -> None:
        """Make all records so far durable."""
        self._require_kept()
        last = self._written
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

    @contextlib.contextmanager
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
        with self._lock:
            complete, self._unsynced = self._unsynced, []
            current = self._writer
        for writer in complete:
            writer.sync()
            writer.close()
        if current is not None:
            current.sync()
        # A complete segment may have been made since the names were forced.
        if complete or current is not self._listed:
            sync(self.folder)
            self._listed = current

    def _sync_regularly(self) -> None:
        synced = self._written
        while not self._closing.wait(FSYNC_INTERVAL_S):
            last = self._written
            if last != synced:
                try:
                    self.sync()
                except (OSError, StaleIncarnationError):
                    return  # the process ends
                synced = last

    def close(self) -> None:
        """Force everything to the disk, unless ``fsync`` is ``never``. Later appends fail."""
        self._closing.set()
        if self._syncer.is_alive():
            self._syncer.join()
        with self._lock:
            self._lost = self._lost or "this server stops; ask the master for the servers"
            self._rotate()
        # A later server forced to the disk what it took over.
        with contextlib.suppress(StaleIncarnationError):
            self.sync()

    # ---- snapshots ----

    @contextlib.contextmanager
    def new_base(self) -> Iterator[Path]:
        """Yield a new folder for a snapshot, which is removed at the end unless it was put."""
        path = self.folder / f"{_TEMPORARY}-{self._incarnation}-{os.urandom(4).hex()}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def put_base(self, folder: Path, sequence: int) -> Path:
        """Rename a folder, whose files are on the disk, to that of a snapshot."""
        path = self.folder / f"snapshot-{sequence:020d}"
        self._require_owned()
        if not path.exists():  # else nothing has changed since the last snapshot
            rename(folder, path)
        return path

    def drop(self, old: Base, sequence: int, *, whole: bool) -> None:
        """Delete the old snapshot, and the segments that the new one covers."""
        with self._lock:
            used, covered = segments.chain(self.folder, sequence)
            if whole:
                self._rotate()
                covered += used
                self._written = self._durable = sequence
            for segment in covered:
                segment.path.unlink()
            kept = []
            for writer in self._unsynced:  # an open file would keep its room on the disk
                if writer.segment.path.exists():
                    kept.append(writer)
                else:
                    writer.close()
            self._unsynced = kept
        if old.path:
            shutil.rmtree(old.path)
