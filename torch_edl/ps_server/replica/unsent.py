"""Records of a shard that its peer does not have yet, in memory."""

from __future__ import annotations

from collections import deque

from torch_edl.ps_server import records
from torch_edl.ps_server.records import LogEntry


class Unsent:
    """Not thread-safe.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: deque[tuple[int, LogEntry]] = deque()  # by number
        self._bytes = 0
        self.forgotten = 0
        """Records up to this number are not here any more."""

    def has_room(self, size: int) -> bool:
        """Whether a record of so many bytes fits; one always does."""
        return not self._entries or self._bytes + size <= self._most

    def append(self, number: int, entry: LogEntry) -> None:
        """The next record."""
        self._entries.append((number, entry))
        self._bytes += len(entry.payload)

    def batch(self, after: int, until: int) -> list[memoryview]:
        """Records between two numbers, see :func:`torch_edl.ps_server.records.batch`."""
        return records.batch(self._entries, after, until)

    def forget(self, last: int) -> None:
        """The peer has the records up to this one."""
        while self._entries and self._entries[0][0] <= last:
            self._bytes -= len(self._entries.popleft()[1].payload)
        self.forgotten = max(self.forgotten, last)
