"""A file object over bytes, for libraries that need one."""

from __future__ import annotations

import io
import os
from collections.abc import Callable


class RandomAccess(io.RawIOBase):
    """A file object over bytes that are read by offset. Not thread-safe.

    Args:
        size: number of bytes.
        read_at: returns the bytes for (offset, size).
    """

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read_at = read_at
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next read, relative to the start, the current offset or the end;
        return the new offset."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes; all remaining bytes if ``size`` is None or negative."""
        left = max(0, self._size - self._place)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._read_at(self._place, wanted) if wanted else b""
        self._place += len(data)
        return data
