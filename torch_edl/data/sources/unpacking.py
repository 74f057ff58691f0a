"""Compressed files, unpacked into the cache folder once per machine and content.

A gzip or zstd stream can only be read from its start, but tasks are read in any order. Unpacked
files are shared by the processes of the machine. The least recently used files are removed above a
limit. The size of an unpacked file is checked at every use, and its checksum once after each boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from isal.isal_zlib import crc32

from torch_edl.checkpoint.durable import replacing
from torch_edl.config.environment import edl_home
from torch_edl.errors import DataError
from torch_edl.interfaces.source import StoredBytes

log = logging.getLogger(__name__)
# Maximum number of earlier boots to remember, of all machines that share the folder.
_MOST_BOOTS = 8


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


UNPACKED_BYTES = 64 << 30
"""Maximum size of all unpacked files of a machine; the newest file is always kept."""

_PIECE = 1 << 20


_CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".tgz": "gzip"}


def codec_of(path: str) -> str | None:
    """Return the compression of a file by its suffix; None: not compressed."""
    return _CODECS.get(os.path.splitext(path)[1].lower())


def unpacked(path: str, codec: str, original: StoredBytes) -> str:
    """Return the path of the unpacked file in the cache folder; unpack the file if necessary.

    Args:
        path: path or URL of the compressed file.
        original: the compressed file, which is read only if the cache lacks its content.

    Raises:
        DataError: the file is damaged, or changed while it was read, or the disk is full.
    """
    folder = edl_home() / "cache" / "unpacked"
    name = hashlib.sha256(f"{path}\n{tuple(original.stamp)}".encode()).hexdigest()[:32]
    place, record = folder / name, folder / f".{name}.lock"
    try:
        with contextlib.suppress(FileNotFoundError):
            if _Content.noted(record).is_at(place, boot=_boot()):
                os.utime(place)
                return str(place)
        folder.mkdir(parents=True, exist_ok=True)
        with open(record, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = _Content.noted(record)
            if not content.is_at(place, boot=_boot()):
                if not content.is_intact(place):
                    content = _unpack(path, codec, original, place)
                lock.truncate(0)
                lock.write(content.checked(_boot()))
                _make_room(folder, place)
    except OSError as error:
        raise DataError(
            path,
            f"cannot be unpacked into {folder}: {error.strerror or error}; set TORCH_EDL_HOME to a "
            "folder with room",
        ) from error
    return str(place)


@dataclass(frozen=True)
class _Content:
    """The size and checksum of an unpacked file, as recorded in its lock file.

    A file of the right size can be damaged only by a crash of the machine, so the first reader
    after each boot verifies the checksum.
    """

    size: int = 0
    """Size in bytes; 0: nothing is recorded. Empty content is therefore unpacked at every use."""
    crc: int = 0
    """CRC-32 of the content."""
    boots: tuple[str, ...] = ()
    """Ids of the boots in which the checksum was verified, newest last."""

    @classmethod
    def noted(cls, record: Path) -> _Content:
        """Read the record from a lock file; return an empty record if it is missing or damaged."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(record.read_bytes())
            return cls(int(found["size"]), int(found["crc"]), tuple(found["boots"]))
        return cls()

    def checked(self, boot: str) -> bytes:
        """Return the text of the record after the content was verified in this boot."""
        boots = (*self.boots[-_MOST_BOOTS:], boot)
        return json.dumps({"size": self.size, "crc": self.crc, "boots": boots}).encode()

    def is_at(self, place: Path, *, boot: str) -> bool:
        """Return True if the file has the right size and was verified in this boot."""
        return boot in self.boots and self._has_size(place)

    def is_intact(self, place: Path) -> bool:
        """Return True if the file has the right size and checksum; this reads the whole file."""
        if not self._has_size(place):
            return False
        crc = 0
        with open(place, "rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                crc = crc32(piece, crc)
        return crc == self.crc

    def _has_size(self, place: Path) -> bool:
        try:
            return 0 < self.size == place.stat().st_size
        except FileNotFoundError:
            return False


@functools.cache
def _boot() -> str:
    """Return the id of the current boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _unpack(path: str, codec: str, original: StoredBytes, place: Path) -> _Content:
    size = crc = 0
    with replacing(place, 0o600) as file:
        for piece in _pieces(path, codec, original):
            file.write(piece)
            size, crc = size + len(piece), crc32(piece, crc)
        original.check()
    return _Content(size, crc)


def _pieces(path: str, codec: str, original: StoredBytes) -> Iterator[bytes]:
    size = original.stamp.size
    if not size:
        return
    import pyarrow as pa  # unpacks streams of several members or frames

    file = pa.PythonFile(RandomAccess(size, original.read_at), "r")
    with pa.CompressedInputStream(file, codec) as stream:
        while True:
            try:
                piece = stream.read(_PIECE)
            except DataError:
                raise
            except (OSError, pa.ArrowException) as error:
                raise DataError(path, f"the {codec} stream is damaged: {error}") from error
            if not piece:
                return
            yield piece


def _make_room(folder: Path, newest: Path) -> None:
    found = []
    for entry in os.scandir(folder):
        if not entry.name.startswith(".") and entry.name != newest.name:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
    room = UNPACKED_BYTES - newest.stat().st_size
    for _, size, path in sorted(found, reverse=True):
        room -= size
        if room < 0:
            log.warning("unpacked files take more than %d GB: one goes", UNPACKED_BYTES >> 30)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
