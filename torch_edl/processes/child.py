"""What a started process does first: arrange to end with its parent, and set up its log."""

from __future__ import annotations

import ctypes
import errno
import io
import logging
import os
import signal as signals
import sys
from typing import Any

ENV_PARENT_PID = "TORCH_EDL_PARENT_PID"
_PR_SET_PDEATHSIG = 1
# A full disk, and a terminal that was closed.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def follow_parent(signal: int = signals.SIGKILL) -> None:
    """Arranges that this process gets ``signal`` when the process that started it is gone.

    Does nothing unless the launcher named itself in ``TORCH_EDL_PARENT_PID``. The variable is
    removed, so that what this process starts in turn follows it only if it says so.

    Args:
        signal: SIGKILL ends the process whatever it is doing; the master asks for SIGTERM, so
            that it can stop the others first.
    """
    named = os.environ.pop(ENV_PARENT_PID, "")
    if not named:
        return
    parent = int(named)
    # The kernel sends it, so it works in the middle of a torch kernel too. It fires when the
    # *thread* that forked ends: launchers are driven from the main thread.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    # The parent may have died before the kernel was told.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal)


def setup_logging(role: str, id: int) -> None:
    """One log format for every process, to stderr, each line prefixed with ``role-id``.

    What stdout and stderr have no room for is dropped: a full disk below the logs does not fail
    the print of a user's code.
    """
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(_Lossy(fd, "wb", closefd=False), "utf-8", "replace", write_through=True)
        for fd in (1, 2)
    )
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s.%(msecs)03d {role}-{id} %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


def outlive_terminal() -> None:
    """Drops what is printed to a terminal after the terminal was closed, instead of raising: the
    signal that comes with the end of the terminal ends the process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            lossy = _Lossy(stream.fileno(), "wb", closefd=False)
            wrapped = io.TextIOWrapper(lossy, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, wrapped)


class _Lossy(io.FileIO):
    """A file that drops what cannot be written any more."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return len(data)
