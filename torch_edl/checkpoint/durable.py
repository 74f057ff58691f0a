"""Atomic replacement of files and folders that survives a loss of power.

All renames of torch-edl are here: before a rename, the content must be on the disk, and after it,
the new name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torch_edl.errors import UsageError

# Errors of file systems that cannot force a folder to the disk.
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def replacing_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path, at which the block makes a file or a folder. At the end of the block,
    it replaces ``path`` as a whole; if the block raises, ``path`` is unchanged.

    Raises:
        OSError: a write failed; ``path`` is unchanged.
    """
    final = Path(path)
    if final.is_symlink() and final.is_dir():  # replace the target, possibly on another disk
        final = final.resolve()
    temporary = _hidden(final, "part")
    try:
        yield temporary
        sync_tree(temporary)
        if final.is_dir() and any(final.iterdir()):  # a rename cannot replace it
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
    """Yield a file that replaces ``path`` as a whole at the end of the block, or not at all if the
    block raises.

    Args:
        mode: permissions of the file, less the umask.
    """
    with replacing_path(path) as temporary:
        # os.open, not tempfile: the permissions follow the user's umask.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            yield file


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the content of a file by a text, as a whole or not at all.

    Raises:
        OSError: a write failed; the old file is unchanged.
    """
    with replacing(path, mode) as file:
        file.write(text.encode())


def rename(old: Path, new: Path) -> None:
    """Rename a file or a folder whose content is on the disk, and wait until the new name is on the
    disk. An existing file or empty folder of that name is replaced.

    Raises:
        OSError: the rename failed, or a folder of the new name is not empty.
    """
    os.rename(old, new)
    sync(new.parent)


def check_writable(path: Path, option: str, *, is_file: bool) -> None:
    """Raise UsageError unless a file or a folder can be written at ``path``."""
    if is_file and path.is_dir():
        raise UsageError(f"{option} {path}: a folder; name a file")
    if not is_file and path.exists() and not path.is_dir():
        raise UsageError(f"{option} {path}: a file; name a folder")
    # A folder is replaced by a rename, so its parent must be writable. Missing parents are created.
    place = path.parent if is_file or not path.exists() else path
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UsageError(f"{option} {path}: {place} is a file")
    try:
        # A file is written because permissions do not tell: root may write where the disk is
        # read-only.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {place} is not writable ({error.strerror}); name another place, or "
            "allow this user to write there"
        ) from error


def sync_tree(path: Path) -> None:
    """Wait until a file, or a folder with all its content, is on the disk.

    Raises:
        OSError: a write failed.
    """
    if path.is_dir():
        for each in path.iterdir():
            sync_tree(each)
    sync(path)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk.

    Raises:
        OSError: a write failed.
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
    """Return a new path in the same folder, so that a rename is atomic; the hidden name matches no
    glob of data."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.{suffix}")
