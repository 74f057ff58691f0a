"""A folder for what need not survive its process: the replica of another shard, a socket.

It lies in the folder for temporary files (``TMPDIR``) and goes with the process. The folder of a
process that got SIGKILL is removed by the next server of the same user: a process holds a lock on
its folder as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from torch_edl.errors import UsageError

_LOCK = "lock"


class Scratch:
    """Makes the folder ``path``, and removes those of processes that are gone.

    Raises:
        UsageError: the folder cannot be made.
    """

    def __init__(self, name: str) -> None:
        root = Path(tempfile.gettempdir()) / f"torch-edl-{os.getuid()}"
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            if root.stat().st_uid != os.getuid():
                raise PermissionError(1, "belongs to another user", str(root))
            with open(root / _LOCK, "wb") as all_folders:
                # Nobody removes a folder between its making and its locking.
                fcntl.flock(all_folders, fcntl.LOCK_EX)
                for folder in root.iterdir():
                    if folder.is_dir() and (lock := _lock(folder)) is not None:
                        shutil.rmtree(folder)
                        os.close(lock)
                self.path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
                held = _lock(self.path)
                assert held is not None
                self._held = held
        except OSError as error:
            raise UsageError(
                f"{error.filename or root}: {error.strerror}; name a folder for temporary files "
                "with TMPDIR (of a server that keeps a replica, with room for a shard)"
            ) from error

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def _lock(folder: Path) -> int | None:
    """Locks a folder until the descriptor is closed, or the process ends; None: another has it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
