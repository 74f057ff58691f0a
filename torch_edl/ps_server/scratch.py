"""Scratch folders of a process, for files that need not survive it: the replica of another shard, a
socket.

Other users share the folder for temporary files (``TMPDIR``) and may create anything there. A
scratch folder has a random name, and other users cannot enter it. The folder of a killed process is
removed by the next process that makes one: each process holds a lock on its folder as long as it
runs. Only a folder is removed that belongs to this user, is closed to others, and has the mark of
this module; all of this is checked on its open descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from torch_edl.errors import UsageError

_MARK = ".torch-edl-scratch"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Scratch:
    """A new folder ``path``, whose name begins with ``name``; also removes the folders of processes
    that have ended. Raises UsageError if the folder cannot be made."""

    def __init__(self, name: str) -> None:
        parent = Path(tempfile.gettempdir())
        try:
            prefix = f"torch-edl-{os.getuid()}-"
            for path in parent.glob(f"{prefix}*"):
                if (found := _opened(path)) is not None:
                    try:
                        _remove(path, found)
                    finally:
                        os.close(found)
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{name}-", dir=parent))
            self._held = os.open(self.path, _OPEN)
            fcntl.flock(self._held, fcntl.LOCK_SH)
            # Last: unmarked folders are never removed.
            os.close(os.open(_MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._held))
        except OSError as error:
            raise UsageError(
                f"{error.filename or parent}: {error.strerror}; name a folder for temporary files "
                "with TMPDIR (of a server that keeps a replica, with room for a shard)"
            ) from error

    def close(self) -> None:
        """Remove the folder, unless another process holds a lock on it."""
        try:
            _remove(self.path, self._held)
        finally:
            os.close(self._held)


def _remove(path: Path, folder: int) -> None:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)


def _opened(path: Path) -> int | None:
    """Open a folder that this module made for this user; None if it is anything else."""
    try:
        found = os.open(path, _OPEN)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        about = os.fstat(found)
        private = about.st_uid == os.getuid() and not stat.S_IMODE(about.st_mode) & 0o077
        mark = os.stat(_MARK, dir_fd=found, follow_symlinks=False)
        if private and mark.st_uid == os.getuid() and stat.S_ISREG(mark.st_mode):
            return found
    os.close(found)
    return None
