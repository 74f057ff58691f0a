"""Files as sources see them: read at offsets, recognised when they changed, written whole."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from torch_edl.errors import DataError
from torch_edl.files import replacing

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Stamp:
    """What tells one content of a path from another."""

    size: int
    mtime_ns: int
    inode: int


class DataFile:
    """An open data file without a position of its own, so that threads can share it."""

    def __init__(self, path: str, expect: Stamp | None = None) -> None:
        """Opens ``path``.

        Raises:
            DataError: it cannot be opened, or its stamp is not ``expect``.
        """
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror}") from error
        status = os.fstat(self._file.fileno())
        self.stamp = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        if expect is not None and self.stamp != expect:
            self._file.close()
            raise DataError(path, "changed while the job was using it; start the job again")

    @property
    def size(self) -> int:
        """Size in bytes when it was opened."""
        return self.stamp.size

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``; nothing is allocated for what is not there.

        Raises:
            DataError: the file ends before, or the disk failed.
        """
        if size < 0 or offset + size > self.size:
            raise DataError(self.path, f"needs {size} bytes, the file ends before", offset)
        parts = []
        while size:
            try:
                part = os.pread(self._file.fileno(), min(size, 1 << 30), offset)
            except OSError as error:
                raise DataError(self.path, f"cannot be read: {error.strerror}", offset) from error
            if not part:
                raise DataError(self.path, "was cut short while the job was using it", offset)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> DataFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class WholeFile:
    """A writer whose file appears whole when its ``with`` block ends; not at all if that raises."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._replacing = replacing(path)

    def __enter__(self) -> Self:
        self._file = self._replacing.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        except BaseException:
            self._replacing.__exit__(*sys.exc_info())
            raise
        self._replacing.__exit__(kind, error, trace)

    def _finish(self) -> None:
        """Writes what is still held back."""
