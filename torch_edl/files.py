"""Files and folders that are replaced whole, and stay so when the machine loses power.

All renames of torch-edl are here: a rename makes a content visible that must be on the disk before,
and the new name must be on the disk before anybody relies on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# What file systems answer that cannot force a folder to the disk.
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def replacing_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path, at which the block makes a file or a folder. That appears under ``path``
    whole when the block ends, in place of what was there, and not at all if the block raises.

    Raises:
        OSError: the disk refused; what was there stays.
    """
    final = Path(path)
    if final.is_symlink() and final.is_dir():  # to another disk: the folder there is replaced
        final = final.resolve()
    temporary = _hidden(final, "part")
    try:
        yield temporary
        sync_tree(temporary)
        if final.is_dir() and any(final.iterdir()):  # which no rename replaces
            old = _hidden(final, "old")
            os.rename(final, old)
            os.rename(temporary, final)
            sync(final.parent)
            shutil.rmtree(old)
        else:
            os.replace(temporary, final)
            sync(final.parent)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that appears under ``path`` whole when the block ends, and not at all if it raises.

    Args:
        mode: permissions of the file, less the umask.
    """
    with replacing_path(path) as temporary:
        # os.open, not tempfile: the file is to have the permissions of the user's umask.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            yield file


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replaces a file by one of that text, whole or not at all.

    Raises:
        OSError: the disk refused; the old file stays.
    """
    with replacing(path, mode) as file:
        file.write(text.encode())


def rename(old: Path, new: Path) -> None:
    """Renames a file or a folder whose content is on the disk, and returns when the new name is on
    the disk, too. A file and an empty folder of the new name are replaced.

    Raises:
        OSError: the disk refused, or a folder of the new name is not empty.
    """
    os.rename(old, new)
    sync(new.parent)


def sync_tree(path: Path) -> None:
    """Returns when a file, or a folder with all that it holds, is on the disk.

    Raises:
        OSError: the disk refused.
    """
    if path.is_dir():
        for each in path.iterdir():
            sync_tree(each)
    sync(path)


def sync(path: Path) -> None:
    """Returns when a file, or what a folder lists, is on the disk.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _hidden(path: Path, suffix: str) -> Path:
    """A new name in the same folder, so that a rename is atomic; no glob takes it for data."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.{suffix}")
