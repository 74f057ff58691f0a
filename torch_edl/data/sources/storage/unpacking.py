"""Compressed files: unpacked once per machine and content, into the folder of caches.

A stream of gzip or zstd can be read from its start only, and tasks come in any order. What is
unpacked is shared by the processes of the machine, and the least recently used goes first when
there is too much.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch_edl.data.sources.base import Stamp
from torch_edl.data.sources.storage.random_access import RandomAccess
from torch_edl.environment import edl_home
from torch_edl.errors import DataError
from torch_edl.files import replacing

log = logging.getLogger(__name__)

UNPACKED_BYTES = 64 << 30
"""Kept on the disk of a machine; the newest file is always kept."""

_PIECE = 1 << 20

_CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".tgz": "gzip"}


class Original(Protocol):
    """The bytes of a compressed file."""

    stamp: Stamp

    def read_at(self, offset: int, size: int) -> bytes: ...
    def check(self) -> None: ...


def codec_of(path: str) -> str | None:
    """How a file is compressed, by its suffix; None: it is not."""
    return _CODECS.get(os.path.splitext(path)[1].lower())


def unpacked(path: str, codec: str, original: Original) -> str:
    """The file in the folder of caches that holds the content.

    Args:
        path: of the compressed file.
        original: that file, of which nothing is read when the content is there.

    Raises:
        DataError: it is damaged, it changed meanwhile, or there is no room.
    """
    folder = edl_home() / "cache" / "unpacked"
    name = hashlib.sha256(f"{path}\n{tuple(original.stamp)}".encode()).hexdigest()[:32]
    place = folder / name
    try:
        with contextlib.suppress(FileNotFoundError):
            os.utime(place)
            return str(place)
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f".{name}.lock"):
            if not place.exists():
                with replacing(place, 0o600) as file:
                    for piece in _pieces(path, codec, original):
                        file.write(piece)
                    original.check()
                _make_room(folder, place)
    except OSError as error:
        raise DataError(
            path,
            f"cannot be unpacked into {folder}: {error.strerror or error}; set TORCH_EDL_HOME to a "
            "folder with room",
        ) from error
    return str(place)


def _pieces(path: str, codec: str, original: Original) -> Iterator[bytes]:
    size = original.stamp.size
    if not size:
        return
    import pyarrow as pa  # which unpacks several members or frames as one

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


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process of the machine at a time."""
    with open(path, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
