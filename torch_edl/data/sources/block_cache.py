"""Decoded blocks of which some records are still to be read, over all sources of the process.

A block of a local file is let go when all of its records were read: the epoch needs it no more, and
the next block is decoded into the same memory, whose first use costs a lot.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict

from torch_edl.interfaces import Records

CACHE_BYTES = 128 << 20
"""Decoded blocks kept per process; the newest one is always kept."""

_BYTES_OVERHEAD = 64  # of a ``bytes`` object in a list, beside its content

Key = tuple[int, int]
"""Number of the source, and of the block."""


class BlockCache:
    """Decoded blocks, least recently used first.

    Attributes:
        bytes: of all of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, tuple[Records, int, int]] = OrderedDict()
        self.bytes = 0

    def take(self, key: Key, count: int) -> Records | None:
        """All records of a block, of which ``count`` are done with; None: it is not here."""
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
        """Keeps a block of which ``left`` records are not done with."""
        if left <= 0:
            return
        if isinstance(records, list):
            size = sum(map(len, records)) + _BYTES_OVERHEAD * len(records)
        else:
            size = records.get_total_buffer_size()
        with self._lock:
            if key in self._blocks:  # Two threads decoded it at once.
                return
            self._blocks[key] = records, size, left
            self.bytes += size
            while self.bytes > CACHE_BYTES and len(self._blocks) > 1:
                _, (_, freed, _) = self._blocks.popitem(last=False)
                self.bytes -= freed


cache = BlockCache()
"""That of this process."""

source_numbers = itertools.count()
"""For the sources of this process."""
