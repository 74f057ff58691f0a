"""The changes of a shard in one order, as they are appended to its log.

Without a log, and during a replay, nothing is appended. All methods except ``wait_durable`` are
called with the lock of all changes held.
"""

from __future__ import annotations

from google.protobuf.message import Message

from torch_edl.ps_server.durability.log import Log
from torch_edl.ps_server.durability.records import Kind, LogEntry
from torch_edl.tables.table import Ids
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb


class Changes:
    """Numbers the changes of a shard and appends them to its log."""

    def __init__(self, log: Log | None) -> None:
        self._log = log
        self.sequence = 0
        """Number of the last change; the change is complete when the lock is free."""
        self.replaying = False
        """True while changes are read from the log and applied again."""
        self._evictions: list[LogEntry] = []  # not yet appended to the log

    @property
    def appended(self) -> bool:
        """True if changes are appended to the log at present."""
        return self._log is not None and not self.replaying

    @property
    def is_slow(self) -> bool:
        """True if :meth:`wait_durable` waits for a disk or a peer."""
        return self._log is not None and self._log.is_slow

    def entry(self, kind: Kind, message: Message, frames: codec.Frames = ()) -> LogEntry | None:
        """Return the argument of :meth:`append`; None if nothing is appended. Called without the
        lock, since the checksum takes time.

        Raises:
            UsageError: the change is too large for a record.
        """
        if not self.appended:
            return None
        return LogEntry.of(kind, message.SerializeToString(), frames)

    def append(self, entry: LogEntry | None) -> None:
        """Append a change to the log, before the caller makes it.

        Raises:
            OSError: the log has no room; the change must not be made.
        """
        if self._log is None or entry is None:
            return
        while self._evictions:
            self.sequence = self._log.append(self._evictions[0])
            del self._evictions[0]
        self.sequence = self._log.append(entry)

    def note_eviction(self, table: str, ids: Ids) -> None:
        """Record removed rows. Which rows are removed depends on pulls, which are no changes, so
        their ids become a record of their own, appended before the next one."""
        if self.appended and len(ids):
            entry = pb.TableIds(name=table, ids=ids.astype("<i8").tobytes())
            self._evictions.append(LogEntry.of(Kind.EVICTION, entry.SerializeToString()))

    def wait_durable(self) -> None:
        """Wait until all changes so far survive the loss of this process; see :class:`Log` for
        errors."""
        if self._log is not None and not self.replaying:
            self._log.wait_durable(self.sequence)
