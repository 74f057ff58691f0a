"""Bytes as a file object, for libraries that want one."""

from __future__ import annotations

import io
import os
from collections.abc import Callable


class RandomAccess(io.RawIOBase):
    """A file object over bytes that are read by place; not for several threads.

    Args:
        size: number of the bytes.
        read_at: reads them: offset, size.
    """

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read_at = read_at
        self._place = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the place of the next read, from the start, from there or from the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        """As many bytes as there are, up to ``size``."""
        left = max(0, self._size - self._place)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._read_at(self._place, wanted) if wanted else b""
        self._place += len(data)
        return data
