"""Data files, opened by path or URL and read in ranges; compressed files are unpacked."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Self

from torch_edl.checkpoint.durable import replacing
from torch_edl.config.extensions import STORAGES, installed, load
from torch_edl.data.sources import unpacking
from torch_edl.data.sources.base import CHANGED, is_url
from torch_edl.data.sources.unpacking import RandomAccess
from torch_edl.errors import DataError
from torch_edl.interfaces.source import Stamp, Storage, StoredBytes

KEPT_MAP_BYTES = 256 << 20
"""Size of a file above which each view has its own mapping, since pages of a kept mapping count as
memory of the process."""

_FINGERPRINT_BYTES = 64 << 10  # size of the first and of the last block of a fingerprint

MAX_OPEN = 16
"""Maximum number of open files without a reader, per process."""


class DataFile:
    """An open data file without a position, so that threads can share it."""

    def __init__(self, path: str, expect: Stamp | None = None) -> None:
        """Open a path or URL; raise DataError if this fails, or the stamp is not ``expect``."""
        self.path = path
        self.reader: Any = None
        """Reader that a format has opened for this file, valid while the file is open."""
        codec = unpacking.codec_of(path)
        if codec is None:
            self._bytes = _stored(path, expect)
        else:
            self._bytes = _unpacked(path, codec, expect)
        self.stamp = self._bytes.stamp
        """Stamp of the stored file, which may be compressed."""
        self.size = self._bytes.size
        """Size of the content in bytes, after unpacking."""

    def stream(self) -> RandomAccess:
        """Return a new file object over the content, for libraries that need one."""
        return RandomAccess(self.size, self._bytes.read_at)

    @property
    def local_path(self) -> str | None:
        """Path under which a library may open the content while this file is open; None for an
        object in a store, of which :meth:`view_at` makes a copy."""
        return self._bytes.content_path if isinstance(self._bytes, _LocalBytes) else None

    def is_current(self) -> bool:
        """Return True if the path still refers to the opened file, unchanged."""
        with contextlib.suppress(OSError):
            return _stamp(os.stat(self.path)) == self.stamp
        return False

    def will_read(self, start: int, end: int) -> None:
        """Announce that the bytes ``start .. end - 1`` will be read in order, so that requests may
        be large."""
        self._bytes.will_read(start, end)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes from ``offset``; raise DataError if the range is not in the
        file (before memory is allocated), or the disk or the store failed."""
        self._check(offset, size)
        return self._bytes.read_at(offset, size)

    def view_at(self, offset: int, size: int) -> memoryview:
        """Return the bytes of :meth:`read_at`, without a copy if the file is local.

        If a local file is truncated while it is in use, the process is killed by SIGBUS; the next
        process reports that the file has changed.
        """
        self._check(offset, size)
        return self._bytes.view_at(offset, size)

    def _check(self, offset: int, size: int) -> None:
        if size < 0 or offset < 0 or offset + size > self.size:
            raise DataError(self.path, f"needs {size} bytes, the file ends before", offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; raise DataError if it is an object in a store that has changed."""
        self.reader = None
        self._bytes.close()


def fingerprint(path: str, stamp: Stamp) -> str:
    """Return a fingerprint of a file's content: the tag of an object in its store, or a digest of
    the first and the last block. A file with another stamp raises DataError."""
    if is_url(path) and stamp.inode:
        return f"tag {stamp.inode:08x}"
    with DataFile(path, stamp) as file:
        block = min(_FINGERPRINT_BYTES, file.size)
        ends = file.read_at(0, block) + file.read_at(file.size - block, block)
    return hashlib.blake2b(ends, digest_size=8).hexdigest()


def storage_of(url: str) -> Storage:
    """Return the kind of store that has the file of a URL.

    Raises:
        UsageError: no installed package knows the store.
    """
    name = storage_name(url)
    return load(STORAGES, name, f"data of {name}://...")  # type: ignore[no-any-return]


def storage_name(url: str) -> str:
    """Return the name of the entry point for the store of a URL."""
    scheme = url.partition("://")[0].lower()
    return scheme if scheme in installed(STORAGES) else "*"


def _stored(path: str, expect: Stamp | None) -> StoredBytes:
    if is_url(path):
        return storage_of(path).open_object(path, expect)
    return _LocalBytes(path, expect)


def _unpacked(path: str, codec: str, expect: Stamp | None) -> StoredBytes:
    original = _stored(path, expect)
    try:
        original.will_read(0, original.size)
        while True:
            place = unpacking.unpacked(path, codec, original)
            # Another process may have removed the unpacked file to free disk space.
            with contextlib.suppress(FileNotFoundError):
                return _UnpackedBytes(path, place, original.stamp)
    finally:
        original.close()


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


class _LocalBytes:
    """The bytes of a local file."""

    def __init__(self, path: str, expect: Stamp | None) -> None:
        self._path = path
        self._whole: memoryview | None = None
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror}") from error
        status = os.fstat(self._file.fileno())
        self.stamp = _stamp(status)
        self.size = status.st_size
        if expect is not None and self.stamp != expect:
            self._file.close()
            raise DataError(path, CHANGED)

    @property
    def content_path(self) -> str:
        """Path of the opened file, even if its name was replaced or removed since."""
        return f"/proc/self/fd/{self._file.fileno()}"

    def will_read(self, start: int, end: int) -> None:
        """Do nothing, since the kernel detects sequential reads."""

    def read_at(self, offset: int, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.pread(self._file.fileno(), min(size, 1 << 30), offset)
            except OSError as error:
                raise DataError(self._path, f"cannot be read: {error.strerror}", offset) from error
            if not part:
                raise DataError(self._path, "was cut short while the job was using it", offset)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view_at(self, offset: int, size: int) -> memoryview:
        if not self.size:
            return memoryview(b"")
        whole = self._whole
        if whole is None:
            whole = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
            self._whole = whole if self.size <= KEPT_MAP_BYTES else None
        return whole[offset : offset + size]

    def check(self) -> None:
        if _stamp(os.fstat(self._file.fileno())) != self.stamp:
            raise DataError(self._path, CHANGED)

    def close(self) -> None:
        self._file.close()


class _UnpackedBytes(_LocalBytes):
    """The unpacked content of a compressed file."""

    def __init__(self, path: str, place: str, stamp: Stamp) -> None:
        self._path = path
        self._whole = None
        self._file = open(place, "rb", buffering=0)  # noqa: SIM115
        self.size = os.fstat(self._file.fileno()).st_size
        self.stamp = stamp

    def check(self) -> None:
        """Do nothing, since unpacked files are never changed."""


class WholeFile:
    """A writer whose file appears atomically at the end of its ``with`` block, unless the block
    raises."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._opened = self._open(path)

    @contextlib.contextmanager
    def _open(self, path: str | os.PathLike[str]) -> Iterator[None]:
        with replacing(path) as self._file:
            yield
            self._finish()

    def __enter__(self) -> Self:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def _finish(self) -> None:
        """Write all buffered data."""


# A cache of open local files: opening a file, mapping it and touching its pages for the first time
# takes as long as decoding a task.
_idle: OrderedDict[tuple[str, Stamp], DataFile] = OrderedDict()  # each operation is atomic


@contextlib.contextmanager
def opened(path: str, expect: Stamp) -> Iterator[DataFile]:
    """Return a context with an open file for one reader. Local files stay open for the next one.

    Raises:
        DataError: the file cannot be opened, has another stamp, or is an object in a store that
            has changed at the end of the context.
    """
    file = _idle.pop((path, expect), None)
    if file is None or not file.is_current():
        file = DataFile(path, expect=expect)
    try:
        yield file
    except BaseException:
        file.close()
        raise
    if file.local_path is None:
        file.close()
        return
    _idle[file.path, file.stamp] = file
    while len(_idle) > MAX_OPEN:
        with contextlib.suppress(KeyError):  # another thread has taken the file
            _idle.popitem(last=False)[1].close()
