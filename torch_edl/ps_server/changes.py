"""The changes of a shard in their one order, as its sink gets them.

Without a sink, and while changes are made again, nothing is appended. All methods but
``wait_durable`` are called with the lock of all changes.
"""

from __future__ import annotations

from torch_edl.ps_server.records import Kind, LogEntry, Sink
from torch_edl.tables.table import Ids
from torch_edl.wire import pserver_pb2 as pb


class Changes:
    """Numbers the changes of a shard."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self.sequence = 0
        """Of the last change, which is made when nobody holds the lock."""
        self.replaying = False
        """The changes that are made are those of the sink."""
        self._evictions: list[LogEntry] = []  # that the sink lacks

    @property
    def appended(self) -> bool:
        """Whether the sink gets changes at present."""
        return self._sink is not None and not self.replaying

    @property
    def is_slow(self) -> bool:
        """Whether :meth:`wait_durable` waits for a disk or a peer."""
        return self._sink is not None and self._sink.is_slow

    def entry(self, kind: Kind, request: bytes) -> LogEntry | None:
        """What :meth:`append` takes. The checksum costs time: better without the lock."""
        return LogEntry.of(kind, request) if self.appended else None

    def append(self, entry: LogEntry | None) -> None:
        """Gives the sink a change that the caller makes next.

        Raises:
            OSError: the sink has no room; the change must not be made.
        """
        if self._sink is None or entry is None:
            return
        while self._evictions:
            self.sequence = self._sink.append(self._evictions[0])
            del self._evictions[0]
        self.sequence = self._sink.append(entry)

    def note_eviction(self, table: str, ids: Ids) -> None:
        """Rows were removed. Which rows depends on pulls, and pulls are no changes: the ids become
        a record of their own, right before the next one."""
        if self.appended and len(ids):
            entry = pb.TableIds(name=table, ids=ids.astype("<i8").tobytes())
            self._evictions.append(LogEntry.of(Kind.EVICTION, entry.SerializeToString()))

    def wait_durable(self) -> None:
        """Returns when all changes so far survive this process; see :class:`Sink` for errors."""
        if self._sink is not None and not self.replaying:
            self._sink.wait_durable(self.sequence)
