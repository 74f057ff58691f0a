"""What a process does with its output: one format of logs, and no failure for lack of room."""

from __future__ import annotations

import errno
import io
import logging
import sys
from typing import Any

# A full disk, and a terminal that was closed.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


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
