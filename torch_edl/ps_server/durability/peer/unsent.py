"""Records of a shard in memory, until its peer has them."""

from __future__ import annotations

from collections import deque

from torch_edl.ps_server.durability import records
from torch_edl.ps_server.durability.records import LogEntry


class Unsent:
    """Records that are not sent yet. Not thread-safe.

    Args:
        most: maximum bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: deque[tuple[int, LogEntry]] = deque()  # by number
        self._bytes = 0
        self.forgotten = 0
        """Number of the last record that was removed."""

    @property
    def newest(self) -> int:
        """Number of the newest record, sent or not; 0 before the first."""
        return self._entries[-1][0] if self._entries else self.forgotten

    def has_room(self, size: int) -> bool:
        """Return whether a record of that size fits; a first record always does."""
        return not self._entries or self._bytes + size <= self._most

    def append(self, number: int, entry: LogEntry) -> None:
        """Add the next record."""
        self._entries.append((number, entry))
        self._bytes += entry.size

    def batch(self, after: int, until: int) -> list[memoryview]:
        """Return records between two numbers, see :func:`.records.batch`."""
        return records.batch(self._entries, after, until)

    def forget(self, last: int) -> None:
        """Remove the records up to ``last``: the peer has them."""
        while self._entries and self._entries[0][0] <= last:
            self._bytes -= self._entries.popleft()[1].size
        self.forgotten = max(self.forgotten, last)
