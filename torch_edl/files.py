"""Files that are replaced whole, and what makes them last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that appears under ``path`` whole when the block ends, and not at all if it raises.

    Args:
        mode: permissions of the file, less the umask.
    """
    final = os.fspath(path)
    # In the same folder, so that the rename is atomic; hidden, so that no glob takes it for data.
    folder, name = os.path.split(final)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    # os.open, not tempfile: the file is to have the permissions of the user's umask.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replaces a file by one of that text, whole or not at all.

    Raises:
        OSError: the disk refused; the old file stays.
    """
    with replacing(path, mode) as file:
        file.write(text.encode())


def sync(path: Path) -> None:
    """Returns when a file, or what a folder lists, is on the disk.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
