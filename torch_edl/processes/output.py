"""Log format of all processes, and output streams that ignore a full disk or a closed terminal."""

from __future__ import annotations

import errno
import io
import logging
import sys
from typing import Any

# Errors of a full disk, an exceeded quota and a closed terminal.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def setup_logging(role: str, id: int) -> None:
    """Set up logging to stderr, with the prefix ``role-id`` in each line.

    Output to stdout and stderr is dropped if the disk is full, so that a print in the user's code
    does not fail.
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
    """Drop output to a terminal that was closed, instead of raising OSError.

    A closed terminal also sends a signal, and that signal ends the process.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            lossy = _Lossy(stream.fileno(), "wb", closefd=False)
            wrapped = io.TextIOWrapper(lossy, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, wrapped)


class _Lossy(io.FileIO):
    """A file that drops data if the disk is full or the terminal closed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return len(data)
