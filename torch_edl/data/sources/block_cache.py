"""Decoded blocks with unread records, of all sources of the process.

A block of a local file is released when all its records have been read, since the epoch does not
need the block again. The next block is then decoded into the same memory, which avoids the high
cost of touching new pages.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict

from torch_edl.interfaces import Records

CACHE_BYTES = 128 << 20
"""Maximum size of the cache in bytes per process; the newest block is always kept."""

_BYTES_OVERHEAD = 64  # memory of a ``bytes`` object in a list, without its content

Key = tuple[int, int]
"""Number of the source, and number of the block."""


class BlockCache:
    """A least recently used cache of decoded blocks.

    Attributes:
        bytes: total size of all blocks in bytes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, tuple[Records, int, int]] = OrderedDict()
        self.bytes = 0

    def take(self, key: Key, count: int) -> Records | None:
        """Return all records of a block and count ``count`` of them as read; None if the block is
        not in the cache. A block without unread records is released."""
        with self._lock:
            found = self._blocks.pop(key, None)
            if found is None:
                return None
            records, size, left = found
            if left > count:
                self._blocks[key] = records, size, left - count
            else:
                self.bytes -= size
            return records

    def put(self, key: Key, records: Records, left: int) -> None:
        """Add a block with ``left`` unread records, and release old blocks above the limit."""
        if left <= 0:
            return
        if isinstance(records, list):
            size = sum(map(len, records)) + _BYTES_OVERHEAD * len(records)
        else:
            size = records.get_total_buffer_size()
        with self._lock:
            if key in self._blocks:  # two threads have decoded the block
                return
            self._blocks[key] = records, size, left
            self.bytes += size
            while self.bytes > CACHE_BYTES and len(self._blocks) > 1:
                _, (_, freed, _) = self._blocks.popitem(last=False)
                self.bytes -= freed


cache = BlockCache()
"""The block cache of this process."""

source_numbers = itertools.count()
"""Numbers for the sources of this process."""
